//! `c10d store verify`.

use std::path::PathBuf;

use c10d_journal::SqliteJournalReader;
use c10d_store::journal::JournalError;
use clap::Args;
use serde_json::json;

use super::contents::{Kept, Pieces};
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
