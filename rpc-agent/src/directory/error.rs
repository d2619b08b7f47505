//! Why a worker cannot join or leave its group, or find another member.

use std::time::Duration;

use c10d_store::StoreError;

use super::bounded_store::BoundedStore;
use super::record::{Member, RecordError};
use crate::shortlist::Shortlist;
use crate::worker::WorkerInfo;

/// The error of a worker that could not join its group, leave it, or find another member. Where PyTorch has a text
/// for the error, the message begins with it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Two workers have the same name. In a static group every worker fails with this error.
    #[error(
        "RPC worker name {name} is not unique. Workers {} and {} share the same name. ({} is at {}, \
         {} at {})",
        first.0, second.0, first.0, first.1, second.0, second.1
    )]
    NameTaken {
        /// The name of both workers.
        name: String,
        /// Id and address of the worker with the lower id.
        first: (u32, String),
        /// Id and address of the other worker.
        second: (u32, String),
    },
    /// Two workers have the same id.
    #[error(
        "RPC worker id {id} is not unique. Worker {} and already has ID and {} cannot be added. \
         (the former is at {}, the latter at {})",
        holder.0, refused.0, holder.1, refused.1
    )]
    IdTaken {
        /// The id of both workers.
        id: u32,
        /// Name and address of the worker that joined first.
        holder: (String, String),
        /// Name and address of the worker that was refused.
        refused: (String, String),
    },
    /// Some workers have a world size and others have none.
    #[error(
        "RPC group mixes statically and dynamically initialized members which is not supported. This \
         worker has {} world size, but {key:?} at {store} says \"{theirs}\"",
        if *is_static { "a" } else { "no" }
    )]
    Mixed {
        /// Full key of the value that the workers must agree on.
        key: String,
        /// Label of the store.
        store: String,
        /// Whether this worker has a world size.
        is_static: bool,
        /// The first worker's value, at most 40 characters of it.
        theirs: String,
    },
    /// The rank is not below the world size, or the world size is not in 1 to 32,768.
    #[error(
        "rank {rank} is not below the world size {world_size}, or the world size is not in 1..=32768"
    )]
    Rank {
        /// This worker's rank.
        rank: u32,
        /// This worker's world size.
        world_size: u32,
    },
    /// Another worker of the group could not start, so the group cannot be complete.
    #[error("{worker} of the group could not start: {why}")]
    WorkerFailed {
        /// The worker that failed.
        worker: Box<WorkerInfo>,
        /// The text of its error, at most 512 characters.
        why: String,
    },
    /// Some workers did not join before the start timeout.
    #[error(
        "only {present} of {world_size} workers joined within {:.3}s: {key:?} at {store} is missing for \
         {missing}",
        elapsed.as_secs_f64()
    )]
    WorkersMissing {
        /// Number of workers that joined, this one included.
        present: usize,
        /// Number of workers in the group.
        world_size: usize,
        /// The ranks that did not join.
        missing: Shortlist<usize>,
        /// Full key that each of them should have written, with `<rank>` for the rank.
        key: String,
        /// Label of the store.
        store: String,
        /// How long this worker waited.
        elapsed: Duration,
    },
    /// Other workers changed the list of members before each write of this worker, until the deadline.
    #[error(
        "could not change the list of members within {:.3}s: others keep changing {key:?} at {store}",
        elapsed.as_secs_f64()
    )]
    Contended {
        /// Full key of the list.
        key: String,
        /// Label of the store.
        store: String,
        /// How long this worker tried.
        elapsed: Duration,
    },
    /// The store holds a value that no worker writes. Another program may use the same keys: use a separate prefix
    /// for the group.
    #[error("{key:?} at {store}: {what}")]
    Corrupt {
        /// Full key of the value.
        key: String,
        /// Label of the store.
        store: String,
        /// Why the value is invalid.
        what: String,
    },
    /// Other workers could not connect to this worker's address.
    #[error("own address {address:?}: {what}")]
    OwnAddress {
        /// The address, `host:port`.
        address: String,
        /// Why the address is invalid.
        what: String,
    },
    /// The store failed. The source names the key, the store and the elapsed time.
    #[error("{doing}: {source}")]
    Store {
        /// The operation of the worker.
        doing: &'static str,
        /// The store's error.
        source: Box<StoreError>,
    },
}

c10d_socket::debug_as_display!(DirectoryError);

impl DirectoryError {
    pub(super) fn name_taken(a: &Member, b: &Member) -> Self {
        let (first, second) = if a.info.id <= b.info.id {
            (a, b)
        } else {
            (b, a)
        };
        let side = |member: &Member| (member.info.id.get(), member.address.host_port.to_string());
        Self::NameTaken {
            name: a.info.name.to_string(),
            first: side(first),
            second: side(second),
        }
    }

    pub(super) fn id_taken(holder: &Member, refused: &Member) -> Self {
        let side = |member: &Member| {
            (
                member.info.name.to_string(),
                member.address.host_port.to_string(),
            )
        };
        Self::IdTaken {
            id: refused.info.id.get(),
            holder: side(holder),
            refused: side(refused),
        }
    }

    pub(super) fn corrupt(store: &BoundedStore, key: &str, error: &RecordError) -> Self {
        Self::Corrupt {
            key: store.full_key(key),
            store: store.label(),
            what: error.to_string(),
        }
    }

    pub(super) const fn store(doing: &'static str) -> impl Fn(StoreError) -> Self + Copy {
        move |source| Self::Store {
            doing,
            source: Box::new(source),
        }
    }
}
