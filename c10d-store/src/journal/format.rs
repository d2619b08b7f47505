//! Which version of the format a journal is written in, if several releases of this program serve it in turn.
//!
//! One number for all that a journal keeps: batches, chunks of snapshots, and where an engine puts them. It only rises, and only
//! to a version that every process reads which may serve the journal next.

use super::error::JournalError;

/// The newest version of the format that this program reads and writes.
pub const FORMAT_VERSION: u8 = 1;

/// The versions that a program reads. It can write each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    /// The first.
    pub oldest: u8,
    /// The last.
    pub newest: u8,
}

impl Formats {
    /// Those of this program.
    pub const OWN: Self = Self {
        oldest: 1,
        newest: FORMAT_VERSION,
    };

    /// Those of a process that says nothing about them, as the releases before versions were negotiated.
    pub const UNSAID: Self = Self {
        oldest: 1,
        newest: 1,
    };

    /// The version to write from now on into a journal that has this one: the newest that others read, too. Never an older
    /// one: a process that cannot read what is there is none to wait for.
    #[must_use]
    pub fn agree(self, kept: u8, others: impl IntoIterator<Item = Self>) -> u8 {
        let newest = others.into_iter().map(|it| it.newest);
        newest.fold(self.newest, u8::min).max(kept)
    }

    /// Whether this program reads the version of a journal at this place. Returns it.
    ///
    /// # Errors
    /// [`JournalError::Newer`] or [`JournalError::Older`].
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
            // Alone, and with another one of this release.
            (reads(1, 2), 1, &[][..], 2),
            (reads(1, 2), 1, &[reads(1, 2)], 2),
            // One of the release before, among others.
            (reads(1, 2), 1, &[reads(1, 1)], 1),
            (reads(1, 2), 1, &[reads(1, 2), Formats::UNSAID], 1),
            (reads(1, 3), 1, &[reads(1, 2)], 2),
            // Later releases do not lead further than this one writes.
            (reads(1, 1), 1, &[reads(1, 2)], 1),
            (reads(1, 2), 1, &[reads(2, 3)], 2),
            // One that came too late.
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
        let newer = "the journal J has format 4; this program reads up to format 3, so a newer one is needed";
        assert_eq!(check(4).expect_err("newer").to_string(), newer);
        let older = "the journal J has format 1; this program reads format 2 and later: an older one, that reads both, must have written \
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
