//! `c10d store verify`.

use std::path::PathBuf;

use c10d_journal::SqliteJournalReader;
use c10d_store::journal::{JournalError, Recovered};
use c10d_store::unstable::{Contents, effects};
use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::output::print_line;

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Check this directory, as given to `c10d store serve --dir`.
    dir: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints what could be read, also of a directory that is damaged.
pub(super) fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let reader = SqliteJournalReader::open(&args.dir)?;
    let mut kept = Kept::default();
    let read = kept.read(&reader);
    let checked = read.and_then(|()| match reader.check_structure()?.as_slice() {
        [] => Ok(()),
        found => Err(JournalError::Damaged {
            place: reader.place(),
            what: format!("all batches can be read, but {}", found.join("; ")),
        }),
    });
    let report = Report::new(&reader, &kept)?;
    let is_intact = checked.is_ok();
    print_line(if args.json {
        report.json(is_intact)
    } else {
        report.text(is_intact)
    })?;
    Ok(checked?)
}

/// The contents, and where they were read from.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) contents: Contents,
    snapshot: Pieces,
    batches: Pieces,
}

/// Chunks of a snapshot, or batches.
#[derive(Debug, Default)]
struct Pieces {
    count: u64,
    bytes: u64,
    /// The positions of the first and of the last. All chunks have one position.
    positions: Option<(u64, u64)>,
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

#[derive(Debug)]
struct Report<'a> {
    store: String,
    epoch: u64,
    kept: &'a Kept,
    keys: usize,
    value_bytes: usize,
    queues: usize,
    elements: usize,
    file_bytes: [u64; 2],
}

impl<'a> Report<'a> {
    fn new(reader: &SqliteJournalReader, kept: &'a Kept) -> Result<Self, JournalError> {
        let identity = reader.identity();
        let store = identity.store.iter().map(|byte| format!("{byte:02x}"));
        let entries = || kept.contents.iter().map(|(_, entry)| entry);
        let values = || entries().filter_map(|entry| entry.value.as_ref());
        let queues = || entries().filter(|entry| !entry.queue.is_empty());
        Ok(Self {
            store: store.collect(),
            epoch: identity.epoch,
            kept,
            keys: values().count(),
            value_bytes: values().map(Vec::len).sum(),
            queues: queues().count(),
            elements: queues().map(|entry| entry.queue.len()).sum(),
            file_bytes: reader.file_bytes()?,
        })
    }

    fn text(&self, is_intact: bool) -> String {
        let shown = |of: &Pieces, text: &dyn Fn(&Pieces, (u64, u64)) -> String| {
            let positions = of.positions;
            positions.map_or_else(|| "none".to_owned(), |it| text(of, it))
        };
        let snapshot = shown(&self.kept.snapshot, &|of, (position, _)| {
            format!(
                "of position {position}, {} chunks, {} B",
                of.count, of.bytes
            )
        });
        let batches = shown(&self.kept.batches, &|of, (first, last)| {
            let (count, bytes) = (of.count, of.bytes);
            format!("{count}, from position {first} to {last}, {bytes} B")
        });
        format!(
            "store     {}, served {} times\n\
             snapshot  {snapshot}\n\
             batches   {batches}\n\
             keys      {}, {} B of values\n\
             queues    {} with {} elements\n\
             files     journal.db {} B, journal.db-wal {} B\n\
             {}",
            self.store,
            self.epoch,
            self.keys,
            self.value_bytes,
            self.queues,
            self.elements,
            self.file_bytes[0],
            self.file_bytes[1],
            if is_intact {
                "intact"
            } else {
                "DAMAGED: only the above could be read"
            },
        )
    }

    fn json(&self, is_intact: bool) -> String {
        let pieces = |pieces: &Pieces| {
            let (first, last) = pieces.positions.unzip();
            json!({ "count": pieces.count, "bytes": pieces.bytes, "first": first, "last": last })
        };
        json!({
            "store": self.store,
            "epoch": self.epoch,
            "intact": is_intact,
            "snapshot": pieces(&self.kept.snapshot),
            "batches": pieces(&self.kept.batches),
            "keys": self.keys,
            "value_bytes": self.value_bytes,
            "queues": self.queues,
            "queue_elements": self.elements,
            "database_bytes": self.file_bytes[0],
            "log_bytes": self.file_bytes[1],
        })
        .to_string()
    }
}
