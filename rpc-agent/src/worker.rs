//! Names and ids of workers, and the ways to address one.
//!
//! Network addresses are in [`crate::directory`].

use std::fmt;
use std::sync::Arc;

/// The longest worker name, in bytes. PyTorch also requires fewer than 128 bytes.
pub const WORKER_NAME_BYTES_MAX: usize = 127;

/// The greatest worker id, the same as PyTorch's, where an id is an `int16_t`.
pub const WORKER_ID_MAX: u32 = i16::MAX as u32;

/// The id of a worker, equal to its rank: 0 to [`WORKER_ID_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u16);

impl WorkerId {
    /// Converts a rank to an id.
    ///
    /// # Errors
    /// [`WorkerError::Id`] if `rank` is greater than [`WORKER_ID_MAX`].
    pub fn new(rank: u32) -> Result<Self, WorkerError> {
        match u16::try_from(rank) {
            Ok(id) if rank <= WORKER_ID_MAX => Ok(Self(id)),
            _ => Err(WorkerError::Id { id: rank }),
        }
    }

    /// Returns the id as a number.
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

/// The name of a worker: 1 to 127 ASCII letters, digits, `-`, `_` and `:`. Cheap to clone.
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
    /// Converts a string to a name.
    ///
    /// # Errors
    /// [`WorkerError::Name`], with PyTorch's text.
    pub fn new(name: &str) -> Result<Self, WorkerError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:".contains(&byte);
        if name.is_empty() || name.len() > WORKER_NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
            // A peer chose the name and its length: the error keeps only the start.
            let shown = name.chars().take(WORKER_NAME_BYTES_MAX + 1).collect();
            return Err(WorkerError::Name { name: shown });
        }
        Ok(Self(name.into()))
    }

    /// Returns the name as a string.
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

/// A worker of the group: its id and its name. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerInfo {
    /// The worker's id, which is equal to its rank.
    pub id: WorkerId,
    /// The worker's name, which is unique in the group.
    pub name: WorkerName,
}

impl WorkerInfo {
    /// Creates the description of a worker from its name and rank.
    ///
    /// # Errors
    /// [`WorkerError`] if no worker can have this name or this rank.
    pub fn new(name: &str, rank: u32) -> Result<Self, WorkerError> {
        Ok(Self {
            id: WorkerId::new(rank)?,
            name: WorkerName::new(name)?,
        })
    }

    /// Returns a placeholder for a worker whose name is unknown: it is named `worker:<id>`.
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

/// The error of a text that is not a worker's name, or a number that is not a worker's id.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The name is empty, longer than [`WORKER_NAME_BYTES_MAX`], or has a character that is not allowed.
    #[error(
        "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, \
         but got {name}"
    )]
    Name {
        /// The refused name, cut to 128 characters.
        name: String,
    },
    /// The id is greater than [`WORKER_ID_MAX`].
    #[error("RPC worker id {id} out of bound of int16_t.")]
    Id {
        /// The refused id.
        id: u32,
    },
}

c10d_socket::debug_as_display!(WorkerError);

/// The callee of a call: a [`WorkerInfo`], a name, or an id.
///
/// Most calls take `impl Into<Destination>`, so `"ps:0"`, `3` and `&info` can be given directly.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Destination<'a> {
    /// The worker that has both this name and this id.
    Info(&'a WorkerInfo),
    /// The worker that has this name.
    Name(&'a str),
    /// The worker that has this id.
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
    fn a_name_has_1_to_127_letters_digits_hyphens_underscores_or_colons() {
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
    fn the_name_of_an_unnamed_worker_is_valid() {
        let unnamed = WorkerInfo::unnamed(WorkerId::new(WORKER_ID_MAX).unwrap());
        assert_eq!(unnamed.name.as_str(), "worker:32767");
        let id = unnamed.id.get();
        assert_eq!(WorkerInfo::new(unnamed.name.as_str(), id), Ok(unnamed));
    }

    #[test]
    fn the_error_shows_only_the_start_of_a_long_name() {
        let said = WorkerName::new(&"x".repeat(1 << 20))
            .unwrap_err()
            .to_string();
        assert!(said.len() < 300, "{} bytes", said.len());
    }

    #[test]
    fn an_id_is_at_most_the_maximum_of_an_int16() {
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
