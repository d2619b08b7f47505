//! `c10d store export`.

use std::path::Path;

use c10d_journal::SqliteJournalReader;

use super::contents::Kept;
use super::line::Line;
use crate::failure::Failure;
use crate::output::print;
use crate::printable::printable_json;

/// Lines are written in pieces of about these bytes.
const WRITE_BYTES: usize = 64 << 10;

/// Prints nothing of a directory that is damaged.
pub(super) fn run(directory: &Path) -> Result<(), Failure> {
    let reader = SqliteJournalReader::open(directory)?;
    let mut kept = Kept::default();
    kept.read(&reader)?;
    let mut text = String::new();
    for (key, entry) in kept.contents.iter() {
        let line = serde_json::to_string(&Line::new(key, entry));
        text += &printable_json(&line.expect("text and lists"));
        text.push('\n');
        if text.len() >= WRITE_BYTES {
            print(text.as_bytes())?;
            text.clear();
        }
    }
    print(text.as_bytes())
}
