//! The newest epoch and position of a journal, in a file beside the database: `newest`.
//!
//! SQLite's pages have no checksums, so a page with old content looks right. If it has the last rows, or the header, the
//! whole journal looks like an old one. Epochs and positions only rise, so a database that is behind this file is refused.
//!
//! The file has two lines, of a sector each, which are written in turn: the other line is intact if the machine loses power
//! during a write. The lines are written in place, so that a full disk does not matter, and so that a new directory at the
//! same path is not touched.

use std::fs::File;
use std::hash::Hasher as _;
use std::io;
use std::os::unix::fs::FileExt as _;

use siphasher::sip::SipHasher13;

use crate::directory::Directory;

const LINE_BYTES: usize = 512;

/// A copy was put over a used directory, and did not replace its file: releases before 0.3 do not write it.
const ADVICE: &str = "to go back to a copy, use a new directory, or delete the file newest";

/// A state that was on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Newest {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
    /// The last row of the batches, which is never deleted; 0 without one.
    pub(crate) row: i64,
    pub(crate) store: u128,
}

impl Newest {
    /// `None` if the file is missing, for example in a directory of an earlier release, or was never written to the end.
    pub(crate) fn read(directory: &Directory) -> io::Result<Option<Self>> {
        let file = match File::open(directory.newest()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(lines(&file)?.into_iter().flatten().max())
    }

    /// Returns why a database with the state `found` has lost a part of this state.
    pub(crate) fn refute(&self, found: &Self) -> Option<String> {
        // An earlier release, which does not write this file, deletes rows that this one keeps.
        let is_of_same_epoch = found.epoch == self.epoch;
        let (what, found, expected) = if found.store != self.store {
            let what = "journal.db is of another store than the file newest beside it";
            return Some(format!("{what}; {ADVICE}"));
        } else if found.epoch < self.epoch {
            ("header is of epoch", found.epoch, self.epoch)
        } else if found.position < self.position {
            ("last batch is", found.position, self.position)
        } else if is_of_same_epoch && found.row < self.row {
            ("last row is", found.row as u64, self.row as u64)
        } else {
            return None;
        };
        Some(format!(
            "the {what} {found}, but {expected} was on the disk: a part of journal.db is older than the rest; {ADVICE}"
        ))
    }

    fn line(&self) -> [u8; LINE_BYTES] {
        let Self {
            epoch,
            position,
            row,
            store,
        } = self;
        let facts = format!("epoch {epoch} position {position} row {row} store {store:032x}");
        let text = format!("{facts} checksum {:016x}", checksum(&facts));
        let mut line = [b' '; LINE_BYTES];
        line[..text.len()].copy_from_slice(text.as_bytes());
        line[LINE_BYTES - 1] = b'\n';
        line
    }

    fn of_line(line: &[u8]) -> Option<Self> {
        let text = str::from_utf8(line).ok()?.trim_end();
        let (facts, sum) = text.rsplit_once(" checksum ")?;
        let mut words = facts.split(' ').skip(1).step_by(2);
        let newest = Self {
            epoch: words.next()?.parse().ok()?,
            position: words.next()?.parse().ok()?,
            row: words.next()?.parse().ok()?,
            store: u128::from_str_radix(words.next()?, 16).ok()?,
        };
        (sum == format!("{:016x}", checksum(facts))).then_some(newest)
    }
}

/// The file of a journal that is served.
#[derive(Debug)]
pub(crate) struct NewestFile {
    file: File,
    /// The line that is older, or not as it was written.
    next: usize,
}

impl NewestFile {
    /// Makes it if it is missing.
    pub(crate) fn open(directory: &Directory) -> io::Result<Self> {
        let file = directory.open_private(&directory.newest())?;
        let [first, second] = lines(&file)?;
        let next = usize::from(first > second);
        Ok(Self { file, next })
    }

    /// Returns when it is on the disk.
    pub(crate) fn write(&mut self, newest: Newest) -> io::Result<()> {
        let at = self.next * LINE_BYTES;
        self.file.write_all_at(&newest.line(), at as u64)?;
        self.next = 1 - self.next;
        self.file.sync_data()
    }
}

fn lines(file: &File) -> io::Result<[Option<Newest>; 2]> {
    let mut found = [None, None];
    for (index, found) in found.iter_mut().enumerate() {
        let mut line = [0; LINE_BYTES];
        match file.read_exact_at(&mut line, (index * LINE_BYTES) as u64) {
            Ok(()) => *found = Newest::of_line(&line),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn checksum(text: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACHED: Newest = Newest {
        epoch: 3,
        position: 20,
        row: 25,
        store: 7,
    };

    #[test]
    fn only_what_is_behind_is_refused() {
        for (found, expected) in [
            (REACHED, ""),
            (
                Newest {
                    position: 21,
                    row: 26,
                    ..REACHED
                },
                "",
            ),
            (
                Newest {
                    epoch: 2,
                    ..REACHED
                },
                "header is of epoch 2, but 3",
            ),
            (
                Newest {
                    position: 19,
                    row: 30,
                    ..REACHED
                },
                "last batch is 19, but 20",
            ),
            // A snapshot has the position, the batches after it are not found.
            (Newest { row: 24, ..REACHED }, "last row is 24, but 25"),
            // The release before has served the directory since then, and has deleted the rows.
            (
                Newest {
                    epoch: 4,
                    row: 0,
                    ..REACHED
                },
                "",
            ),
            (
                Newest {
                    epoch: 4,
                    position: 1,
                    store: 8,
                    ..REACHED
                },
                "another store",
            ),
        ] {
            let refuted = REACHED.refute(&found);
            assert_eq!(refuted.is_none(), expected.is_empty(), "{refuted:?}");
            let what = refuted.unwrap_or_default();
            assert!(what.contains(expected), "{what}");
        }
    }

    #[test]
    fn a_line_that_is_not_as_it_was_written_is_none() {
        let line = REACHED.line();
        assert_eq!(Newest::of_line(&line), Some(REACHED));
        for at in 0..line.len() - 1 {
            let mut line = line;
            line[at] ^= 1;
            assert_ne!(Newest::of_line(&line), Some(REACHED), "byte {at}");
        }
        assert_eq!(Newest::of_line(&[0; LINE_BYTES]), None);
    }
}
