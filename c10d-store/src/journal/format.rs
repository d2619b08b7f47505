//! The version of the format that a journal is written in, if several releases of this program serve it in turn.
//!
//! One number is the version of everything that a journal keeps: batches, chunks of snapshots, and where an engine
//! puts them. It only rises, and only to a version that all processes can read that may serve the journal next.

use super::error::JournalError;

/// The newest version of the format that this program reads and writes.
pub const FORMAT_VERSION: u8 = 1;

/// The versions that a program reads. It can write each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    /// The oldest version.
    pub oldest: u8,
    /// The newest version.
    pub newest: u8,
}

impl Formats {
    /// The versions that this program reads.
    pub const OWN: Self = Self {
        oldest: 1,
        newest: FORMAT_VERSION,
    };

    /// The versions of a process that does not announce any, such as releases before version negotiation.
    pub const UNSAID: Self = Self {
        oldest: 1,
        newest: 1,
    };

    /// Returns the version to write from now on: the newest that all `others` can read, but never older than `kept`,
    /// the version of the journal. A process that cannot read the journal as it is could not take over anyway.
    #[must_use]
    pub fn agree(self, kept: u8, others: impl IntoIterator<Item = Self>) -> u8 {
        let newest = others.into_iter().map(|it| it.newest);
        newest.fold(self.newest, u8::min).max(kept)
    }

    /// Checks that this program reads the version `found` of a journal at this place, and returns the version.
    ///
    /// # Errors
    /// [`JournalError::Newer`] or [`JournalError::Older`] if it does not.
    pub fn check(self, found: u64, place: impl FnOnce() -> String) -> Result<u8, JournalError> {
        match u8::try_from(found) {
            Ok(found) if found < self.oldest => Err(JournalError::Older {
                place: place(),
                found: found.into(),
                known: self.oldest.into(),
            }),
            Ok(found) if found <= self.newest => Ok(found),
            _ => Err(JournalError::Newer {
                place: place(),
                found,
                known: self.newest.into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn reads(oldest: u8, newest: u8) -> Formats {
        Formats { oldest, newest }
    }

    #[test]
    fn the_newest_version_waits_until_all_read_it() {
        for (mine, kept, others, expected) in [
            // Alone, and with another process of this release.
            (reads(1, 2), 1, &[][..], 2),
            (reads(1, 2), 1, &[reads(1, 2)], 2),
            // One of the release before, among others.
            (reads(1, 2), 1, &[reads(1, 1)], 1),
            (reads(1, 2), 1, &[reads(1, 2), Formats::UNSAID], 1),
            (reads(1, 3), 1, &[reads(1, 2)], 2),
            // Later releases do not lead further than this one writes.
            (reads(1, 1), 1, &[reads(1, 2)], 1),
            (reads(1, 2), 1, &[reads(2, 3)], 2),
            // A process that started too late.
            (reads(1, 2), 2, &[reads(1, 1)], 2),
            (reads(1, 3), 2, &[reads(1, 1), reads(1, 3)], 2),
        ] {
            let agreed = mine.agree(kept, others.iter().copied());
            assert_eq!(agreed, expected, "{mine:?} {kept} {others:?}");
        }
    }

    #[test]
    fn a_version_that_is_not_read_is_named() {
        let check = |found| reads(2, 3).check(found, || "J".to_owned());
        for found in [2, 3] {
            assert_eq!(u64::from(check(found).expect("it is read")), found);
        }
        let newer = "the journal J has format 4; this program reads up to format 3, so a newer version of it is needed";
        assert_eq!(check(4).expect_err("newer").to_string(), newer);
        let older = "the journal J has format 1; this program reads format 2 and later, so a version that reads both must have written \
            a snapshot first";
        assert_eq!(check(1).expect_err("older").to_string(), older);
        assert!(matches!(
            check(u64::MAX),
            Err(JournalError::Newer {
                found: u64::MAX,
                ..
            })
        ));
    }
}
