//! The contents of a directory.

use c10d_journal::SqliteJournalReader;
use c10d_store::journal::{JournalError, Recovered};
use c10d_store::unstable::{Contents, effects};

/// The contents, and where they were read from.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) contents: Contents,
    pub(super) snapshot: Pieces,
    pub(super) batches: Pieces,
}

/// Chunks of a snapshot, or batches.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// The positions of the first and of the last. All chunks have one position.
    pub(super) positions: Option<(u64, u64)>,
}

impl Pieces {
    fn add(&mut self, position: u64, bytes: &[u8]) {
        self.count += 1;
        self.bytes += bytes.len() as u64;
        let first = self.positions.map_or(position, |(first, _)| first);
        self.positions = Some((first, position));
    }
}

impl Kept {
    /// Whether nothing was ever kept.
    pub(super) const fn is_new(&self) -> bool {
        self.snapshot.count == 0 && self.batches.count == 0
    }

    /// Reads everything, like a server at its start. The contents read before an error are kept.
    pub(super) fn read(&mut self, reader: &SqliteJournalReader) -> Result<(), JournalError> {
        let position = reader.recover(&mut |piece| {
            let (position, bytes, of) = match piece {
                Recovered::Chunk { position, bytes } => (position, bytes, &mut self.snapshot),
                Recovered::Batch { position, bytes } => (position, bytes, &mut self.batches),
                Recovered::Restart => {
                    *self = Self::default();
                    return Ok(());
                }
            };
            let damaged = |what: String| JournalError::Damaged {
                place: reader.place(),
                what: format!("{what}; intact: all before it"),
            };
            for effect in effects(position, bytes).map_err(|it| damaged(it.to_string()))? {
                let effect = effect.map_err(|it| damaged(it.to_string()))?;
                if !self.contents.apply(effect) {
                    let what = format!("batch {position} takes elements that no queue has");
                    return Err(damaged(what));
                }
            }
            of.add(position, bytes);
            Ok(())
        })?;
        log::debug!("read up to position {position}");
        Ok(())
    }
}
