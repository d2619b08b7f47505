#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod copy;
mod database;
mod directory;
#[cfg(feature = "etcd")]
mod etcd;
mod header;
#[cfg(all(test, feature = "etcd"))]
#[path = "../../c10d-relay/tests/it/history.rs"]
mod history;
mod journal;
mod newest;
mod rows;
mod trust;
mod wal;
#[cfg(all(test, feature = "etcd"))]
#[path = "../../c10d-relay/tests/it/workload.rs"]
mod workload;

#[cfg(feature = "etcd")]
pub use etcd::{
    EtcdAddressError, EtcdCandidate, EtcdDirectory, EtcdJournal, EtcdLeader, EtcdLookupError,
    EtcdMember, EtcdMemberStatus, EtcdOptions, EtcdStatus, EtcdTakeover,
};
pub use journal::{SqliteJournal, SqliteJournalReader};
