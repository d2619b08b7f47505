//! The reading side of the log: the snapshot that a head names, and the batches after it.
//!
//! Pure: its caller passes the revision at which the log has the state that the head describes.

use c10d_store::journal::JournalError;

use super::layout::{Head, Layout};
use super::log::{LogRecord, snapshot_part};
use super::loss::record_of;
use super::message::{Keys, Range};

/// How many parts of a snapshot, or of a batch, are read at once. They have the size limit of a value.
const PARTS_PAGE: u64 = 8;

/// How many batches are read at once: at first, and at most.
const LOG_PAGE: u64 = 16;
const LOG_PAGE_MAX: u64 = 1024;

/// A page with fewer bytes is followed by a longer one, one with more by a shorter one.
const PAGE_BYTES_MIN: usize = 1 << 20;
const PAGE_BYTES_MAX: usize = 4 << 20;

/// A piece of the log that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The pieces read so far are void.
    Restart,
    Chunk {
        position: u64,
        bytes: Vec<u8>,
    },
    Batch {
        position: u64,
        bytes: Vec<u8>,
    },
}

/// Reads up to a head.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    layout: Layout,
    /// The revision to read at; 0 for the newest revision.
    revision: u64,
    head: Head,
    /// The position of the last batch that was read.
    position: u64,
    log_page: u64,
    /// The revision of the batch at `position`; `None` if it was not read.
    record: Option<u64>,
    phase: Phase,
}

#[derive(Debug, Clone)]
enum Phase {
    Snapshot {
        next: u64,
        chunk: Vec<u8>,
    },
    Log,
    /// The parts of the batch after `position`; the tail is its last part.
    Parts {
        record: LogRecord,
        next: u64,
        batch: Vec<u8>,
        tail: Vec<u8>,
    },
}

impl Reader {
    /// A reader of the batches after this position, or of everything without a position.
    pub(crate) fn new(layout: Layout, revision: u64, head: Head, position: Option<u64>) -> Self {
        let (phase, position) = match (&head.snapshot, position) {
            (Some(snapshot), None) if snapshot.parts > 0 => {
                let chunk = Vec::new();
                (Phase::Snapshot { next: 0, chunk }, 0)
            }
            (_, position) => (
                Phase::Log,
                position.unwrap_or_else(|| head.snapshot_position()),
            ),
        };
        Self {
            layout,
            revision,
            position,
            head,
            log_page: LOG_PAGE,
            record: None,
            phase,
        }
    }

    /// Identifies the batch that was read last.
    pub(crate) const fn record(&self) -> Option<u64> {
        self.record
    }

    /// The head that it reads up to.
    pub(crate) const fn head(&self) -> &Head {
        &self.head
    }

    /// What to read next; `None` at the end.
    pub(crate) fn next(&self) -> Option<Range> {
        let (key, end, limit) = match (&self.phase, &self.head.snapshot) {
            (Phase::Snapshot { next, .. }, Some(snapshot)) => (
                self.layout.snapshot(snapshot, *next),
                self.layout.snapshot(snapshot, snapshot.parts),
                PARTS_PAGE,
            ),
            (Phase::Parts { record, next, .. }, _) => {
                let part = |number| self.layout.part(self.position + 1, record.writer, number);
                (part(*next), part(record.parts), PARTS_PAGE)
            }
            _ if self.position >= self.head.position => return None,
            _ => (
                self.layout.log(self.position + 1),
                self.layout.log_end(),
                self.log_page,
            ),
        };
        Some(Range {
            end: Some(end),
            limit,
            revision: self.revision,
            ..Range::key(key)
        })
    }

    /// Whether it can ask for less.
    pub(crate) const fn can_be_shorter(&self) -> bool {
        matches!(self.phase, Phase::Log) && self.log_page > 1
    }

    /// The answer to [`next`](Self::next) is more than can be taken.
    pub(crate) fn shorten(&mut self) {
        self.log_page = (self.log_page / 8).max(1);
    }

    /// The answer to [`next`](Self::next).
    pub(crate) fn answered(
        &mut self,
        keys: Keys,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), JournalError> {
        match &mut self.phase {
            Phase::Snapshot { next, chunk } => {
                let snapshot = self.head.snapshot.as_ref();
                let snapshot = snapshot.expect("this phase reads one");
                let position = snapshot.position;
                for key_value in &keys.keys {
                    let is_next = key_value.key == self.layout.snapshot(snapshot, *next);
                    let part = snapshot_part(&key_value.value).filter(|_| is_next);
                    let Some((bytes, is_last)) = part else {
                        let what = format!("part {next} of the snapshot of {position}");
                        return Err(self.layout.damaged(format!("{what} cannot be read")));
                    };
                    *next += 1;
                    chunk.extend_from_slice(bytes);
                    if is_last {
                        let bytes = std::mem::take(chunk);
                        pieces.push(Piece::Chunk { position, bytes });
                    }
                }
                let is_complete = *next >= snapshot.parts && chunk.is_empty();
                if !is_complete && (keys.keys.is_empty() || *next >= snapshot.parts) {
                    let what = format!("the snapshot of {position} ends at part {next}");
                    return Err(self.layout.damaged(what));
                }
                if is_complete {
                    self.position = position;
                    self.phase = Phase::Log;
                }
            }
            Phase::Log => self.read_log(keys, pieces)?,
            Phase::Parts {
                record,
                next,
                batch,
                tail,
            } => {
                let position = self.position + 1;
                for key_value in &keys.keys {
                    if key_value.key != self.layout.part(position, record.writer, *next) {
                        break;
                    }
                    *next += 1;
                    batch.extend_from_slice(&key_value.value);
                }
                if keys.keys.is_empty() {
                    let what = format!("batch {position} lacks part {next} of {}", record.parts);
                    return Err(self.layout.damaged(what));
                }
                if *next == record.parts {
                    let mut bytes = std::mem::take(batch);
                    bytes.append(tail);
                    pieces.push(Piece::Batch { position, bytes });
                    self.position = position;
                    self.phase = Phase::Log;
                }
            }
        }
        Ok(())
    }

    fn read_log(&mut self, keys: Keys, pieces: &mut Vec<Piece>) -> Result<(), JournalError> {
        if keys.keys.is_empty() {
            let (next, head) = (self.position + 1, self.head.position);
            let what = format!("batch {next} is missing, of {head}");
            return Err(self.layout.damaged(what));
        }
        let bytes: usize = keys.keys.iter().map(|it| it.value.len()).sum();
        if bytes < PAGE_BYTES_MIN {
            self.log_page = (self.log_page * 2).min(LOG_PAGE_MAX);
        } else if bytes > PAGE_BYTES_MAX {
            self.log_page = (self.log_page / 2).max(1);
        }
        for key_value in keys.keys {
            let position = self.position + 1;
            if position > self.head.position {
                break;
            }
            if self.layout.log_position(&key_value.key) != Some(position) {
                return Err(self.layout.damaged(format!("batch {position} is missing")));
            }
            let (record, bytes) = LogRecord::parse(&key_value.value).ok_or_else(|| {
                self.layout
                    .damaged(format!("batch {position} cannot be read"))
            })?;
            self.record = Some(record_of(&key_value.value));
            if record.parts > 0 {
                self.phase = Phase::Parts {
                    record,
                    next: 0,
                    batch: Vec::new(),
                    tail: bytes.to_vec(),
                };
                return Ok(());
            }
            let bytes = bytes.to_vec();
            pieces.push(Piece::Batch { position, bytes });
            self.position = position;
        }
        Ok(())
    }
}
