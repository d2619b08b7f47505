//! Who a worker is: its name, its id, both together.
//!
//! Says nothing of where a worker is reached; see [`crate::directory`].

use std::fmt;
use std::sync::Arc;

/// The longest worker name, in bytes. PyTorch's limit is "shorter than 128".
pub const WORKER_NAME_BYTES_MAX: usize = 127;

/// The greatest worker id: PyTorch keeps ids in 16 bits with a sign.
pub const WORKER_ID_MAX: u32 = i16::MAX as u32;

/// A worker's number, equal to its rank: 0 to [`WORKER_ID_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u16);

impl WorkerId {
    /// Checks a rank.
    ///
    /// # Errors
    /// [`WorkerError::Id`] beyond [`WORKER_ID_MAX`].
    pub fn new(rank: u32) -> Result<Self, WorkerError> {
        match u16::try_from(rank) {
            Ok(id) if rank <= WORKER_ID_MAX => Ok(Self(id)),
            _ => Err(WorkerError::Id { id: rank }),
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A worker's name: 1 to 127 ASCII letters, digits, `-`, `_` and `:`. Cheap to clone.
///
/// ```
/// use rpc_agent::WorkerName;
///
/// assert!(WorkerName::new("trainer:0").is_ok());
/// assert!(WorkerName::new("trainer 0").is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerName(Arc<str>);

impl WorkerName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`WorkerError::Name`], in the words of PyTorch.
    pub fn new(name: &str) -> Result<Self, WorkerError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:".contains(&byte);
        if name.is_empty() || name.len() > WORKER_NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
            // A stranger's name may be long: what is shown of it is not.
            let shown = name.chars().take(WORKER_NAME_BYTES_MAX + 1).collect();
            return Err(WorkerError::Name { name: shown });
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A worker of the group. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerInfo {
    /// Its number, equal to its rank.
    pub id: WorkerId,
    /// Its name, unique in the group.
    pub name: WorkerName,
}

impl WorkerInfo {
    /// Both, checked.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn new(name: &str, rank: u32) -> Result<Self, WorkerError> {
        Ok(Self {
            id: WorkerId::new(rank)?,
            name: WorkerName::new(name)?,
        })
    }

    /// A worker of which no more than the id is known: it is named `worker:` and that.
    #[must_use]
    pub fn unnamed(id: WorkerId) -> Self {
        Self {
            id,
            name: WorkerName(format!("worker:{id}").into()),
        }
    }
}

impl fmt::Display for WorkerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerInfo(id={}, name={})", self.id, self.name)
    }
}

/// A name or an id that no worker can have.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The name is empty, too long, or has a character that names cannot have.
    #[error(
        "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, \
         but got {name}"
    )]
    Name {
        /// What was given, cut to 128 characters.
        name: String,
    },
    /// The id does not fit in 16 bits with a sign.
    #[error("RPC worker id {id} out of bound of int16_t.")]
    Id {
        /// What was given.
        id: u32,
    },
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl fmt::Debug for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whom a call is for: a [`WorkerInfo`], a name, or an id.
///
/// A `WorkerInfo` must agree with the group in both its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Destination<'a> {
    /// By name and id.
    Info(&'a WorkerInfo),
    /// By name.
    Name(&'a str),
    /// By id.
    Id(u32),
}

impl<'a> From<&'a WorkerInfo> for Destination<'a> {
    fn from(info: &'a WorkerInfo) -> Self {
        Self::Info(info)
    }
}

impl<'a> From<&'a str> for Destination<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a String> for Destination<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a WorkerName> for Destination<'a> {
    fn from(name: &'a WorkerName) -> Self {
        Self::Name(name.as_str())
    }
}

impl From<u32> for Destination<'_> {
    fn from(rank: u32) -> Self {
        Self::Id(rank)
    }
}

impl From<WorkerId> for Destination<'_> {
    fn from(id: WorkerId) -> Self {
        Self::Id(id.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_127_letters_digits_and_three_signs() {
        let longest = "n".repeat(127);
        for name in ["a", "trainer:0", "A-Z_09", longest.as_str()] {
            assert_eq!(WorkerName::new(name).unwrap().as_str(), name);
        }
        let too_long = "n".repeat(128);
        for name in ["", "a b", "a/b", "é", "a\n", too_long.as_str()] {
            let said = WorkerName::new(name).unwrap_err().to_string();
            assert_eq!(
                said,
                format!(
                    "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter \
                     than 128 chars, but got {name}"
                )
            );
        }
    }

    #[test]
    fn the_name_of_an_unnamed_worker_is_one() {
        let unnamed = WorkerInfo::unnamed(WorkerId::new(WORKER_ID_MAX).unwrap());
        assert_eq!(unnamed.name.as_str(), "worker:32767");
        let id = unnamed.id.get();
        assert_eq!(WorkerInfo::new(unnamed.name.as_str(), id), Ok(unnamed));
    }

    #[test]
    fn a_refused_name_is_shown_in_part_only() {
        let said = WorkerName::new(&"x".repeat(1 << 20))
            .unwrap_err()
            .to_string();
        assert!(said.len() < 300, "{} bytes", said.len());
    }

    #[test]
    fn an_id_fits_in_16_bits_with_a_sign() {
        assert_eq!(WorkerId::new(32_767).unwrap().get(), 32_767);
        for id in [32_768, 65_536, u32::MAX] {
            let said = WorkerId::new(id).unwrap_err().to_string();
            assert_eq!(said, format!("RPC worker id {id} out of bound of int16_t."));
        }
    }

    #[test]
    fn a_worker_is_printed_as_pytorch_prints_it() {
        let worker = WorkerInfo::new("ps:0", 3).unwrap();
        assert_eq!(worker.to_string(), "WorkerInfo(id=3, name=ps:0)");
    }
}
