#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod database;
mod directory;
#[cfg(feature = "etcd")]
mod etcd;
mod header;
mod journal;
mod reader;
mod rows;
mod store_journal;
mod wal;

#[cfg(feature = "etcd")]
pub use etcd::{
    EtcdAddressError, EtcdCandidate, EtcdDirectory, EtcdJournal, EtcdLeader, EtcdLookupError,
    EtcdOptions, EtcdStatus,
};
pub use journal::SqliteJournal;
pub use reader::SqliteJournalReader;
pub use store_journal::StoreJournal;
