#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod database;
mod directory;
mod header;
mod journal;
mod reader;
mod rows;
mod wal;

pub use journal::SqliteJournal;
pub use reader::SqliteJournalReader;
