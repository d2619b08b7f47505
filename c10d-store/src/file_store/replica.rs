//! The records that one store object has read from its file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;

use super::locked_file::{Identity, LockedFile};
use super::record::{Entries, RECORD_HEAD_BYTES, can_start_record};

/// The size of a read, unless a single record is longer.
const CHUNK_BYTES: u64 = 64 << 10;

/// A copy of the file's contents, updated by reading the appended records.
#[derive(Debug, Default)]
pub(super) struct Replica {
    source: Option<Source>,
    entries: Entries,
    /// The end of the last whole record read.
    offset: u64,
}

/// The file that was read. Kept open so that no new file at the same path can get the same inode
/// number.
#[derive(Debug)]
struct Source {
    identity: Identity,
    _file: File,
}

/// The bytes after the last whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// Nothing follows it.
    Whole,
    /// An incomplete record, whose writer died.
    Torn { offset: u64, bytes: u64 },
    /// Bytes that no writer of this format writes.
    Foreign { offset: u64 },
}

impl Replica {
    pub(super) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Whether a file with this metadata contains exactly what has been read.
    pub(super) fn is_current(&self, metadata: &Metadata) -> bool {
        self.is_of(metadata) && metadata.len() == self.offset
    }

    /// Resets the replica: the file is missing.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Reads the appended records; all records if the file is a different file, or shorter than before.
    pub(super) fn refresh(&mut self, file: &LockedFile) -> io::Result<Tail> {
        let metadata = file.metadata()?;
        if !self.is_of(&metadata) || metadata.len() < self.offset {
            *self = Self {
                source: Some(Source {
                    identity: Identity::of(&metadata),
                    _file: file.try_clone()?,
                }),
                ..Self::default()
            };
        }
        self.read(file, metadata.len())
    }

    /// Appends whole records; truncates them again if that fails.
    ///
    /// The file must be locked exclusively, refreshed, and without a torn tail.
    pub(super) fn append(&mut self, file: &LockedFile, records: &[u8]) -> io::Result<()> {
        // One system call in practice, so that a killed writer leaves all or nothing; the next writer
        // repairs the rest.
        if let Err(error) = file.write_all_at(records, self.offset) {
            if let Err(error) = file.set_len(self.offset) {
                log::warn!("cannot truncate an incomplete record: {error}");
            }
            return Err(error);
        }
        let replayed = self.entries.replay(records);
        debug_assert_eq!(
            replayed.bytes,
            records.len(),
            "only whole records are written"
        );
        self.offset += records.len() as u64;
        Ok(())
    }

    fn is_of(&self, metadata: &Metadata) -> bool {
        let identity = Identity::of(metadata);
        self.source
            .as_ref()
            .is_some_and(|source| source.identity == identity)
    }

    /// Applies the records between `offset` and `end`.
    fn read(&mut self, file: &File, end: u64) -> io::Result<Tail> {
        let mut unread = self.offset;
        let mut buffer = Vec::new();
        loop {
            let replayed = self.entries.replay(&buffer);
            buffer.drain(..replayed.bytes);
            self.offset += replayed.bytes as u64;
            let left = end - self.offset;
            if left == 0 {
                return Ok(Tail::Whole);
            }
            // Memory follows the size of the file, not an announced length.
            if replayed.next_bytes_min > left {
                return self.classify(file, left);
            }
            let missing = replayed.next_bytes_min - buffer.len() as u64;
            let chunk = missing.max(CHUNK_BYTES).min(end - unread);
            let start = buffer.len();
            buffer.resize(start + chunk as usize, 0);
            file.read_exact_at(&mut buffer[start..], unread)?;
            unread += chunk;
        }
    }

    fn classify(&self, file: &File, bytes: u64) -> io::Result<Tail> {
        let mut head = [0; RECORD_HEAD_BYTES];
        let head = &mut head[..bytes.min(RECORD_HEAD_BYTES as u64) as usize];
        file.read_exact_at(head, self.offset)?;
        let offset = self.offset;
        Ok(if can_start_record(head) {
            Tail::Torn { offset, bytes }
        } else {
            Tail::Foreign { offset }
        })
    }
}
