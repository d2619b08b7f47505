#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod database;
mod directory;
mod header;
mod journal;
mod reader;
mod rows;
mod store_journal;
mod wal;

pub use journal::SqliteJournal;
pub use reader::SqliteJournalReader;
pub use store_journal::StoreJournal;
