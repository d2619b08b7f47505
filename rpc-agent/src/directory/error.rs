//! Why a worker is not in its group, or cannot find another one.

use std::fmt;
use std::time::Duration;

use c10d_store::StoreError;

use super::bounded_store::BoundedStore;
use super::lease::LeaseError;
use super::record::{Member, RecordError};

/// How many missing ranks are named one by one.
const RANKS_SHOWN_MAX: usize = 16;

/// Why a worker could not join its group, leave it, or find another one. Where PyTorch has words for
/// it, they come first.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Two workers have the same name. In a group of fixed size every worker is told so.
    #[error(
        "RPC worker name {name} is not unique. Workers {} and {} share the same name. ({} is at {}, \
         {} at {})",
        first.0, second.0, first.0, first.1, second.0, second.1
    )]
    NameTaken {
        /// The name.
        name: String,
        /// One worker's id, and where it listens.
        first: (u32, String),
        /// The other's.
        second: (u32, String),
    },
    /// Two workers have the same id.
    #[error(
        "RPC worker id {id} is not unique. Worker {} and already has ID and {} cannot be added. \
         (the former is at {}, the latter at {})",
        holder.0, refused.0, holder.1, refused.1
    )]
    IdTaken {
        /// The id.
        id: u32,
        /// The name of the worker that has it, and where it listens.
        holder: (String, String),
        /// Those of the worker that came later.
        refused: (String, String),
    },
    /// Some workers were told the size of the group, and some were not.
    #[error(
        "RPC group mixes statically and dynamically initialized members which is not supported. This \
         worker has {} world size, but {key:?} at {store} says {theirs:?}",
        if *is_static { "a" } else { "no" }
    )]
    Mixed {
        /// The key.
        key: String,
        /// The store.
        store: String,
        /// Whether this worker knows a world size.
        is_static: bool,
        /// What the first worker wrote, shortened.
        theirs: String,
    },
    /// The rank or the world size makes no sense.
    #[error("rank {rank} is not below the world size {world_size}, or that is not in 1..=32768")]
    Rank {
        /// This worker's rank.
        rank: u32,
        /// What it was told of the group.
        world_size: u32,
    },
    /// Not all workers came in time.
    #[error(
        "{present} of {world_size} workers are there after {:.3}s: no {key:?} at {store} for {missing}",
        elapsed.as_secs_f64()
    )]
    WorkersMissing {
        /// How many are there.
        present: usize,
        /// How many there should be.
        world_size: usize,
        /// Which are not.
        missing: MissingRanks,
        /// What each of them should have written.
        key: String,
        /// The store.
        store: String,
        /// How long this worker waited.
        elapsed: Duration,
    },
    /// Somebody else was changing the list of members all the time.
    #[error(
        "no turn to change the list of members within {:.3}s: {key:?} at {store} is held by {holder}",
        elapsed.as_secs_f64()
    )]
    NoTurn {
        /// The key of the lease.
        key: String,
        /// The store.
        store: String,
        /// What the last holder calls itself.
        holder: String,
        /// How long this worker waited.
        elapsed: Duration,
    },
    /// What another worker wrote is not what a worker writes.
    #[error("{key:?} at {store}: {what}")]
    Corrupt {
        /// The key.
        key: String,
        /// The store.
        store: String,
        /// What is wrong with the value.
        what: String,
    },
    /// The address of this worker's own listener cannot be told to others.
    #[error("own address {address:?}: {what}")]
    OwnAddress {
        /// What was given.
        address: String,
        /// What is wrong with it.
        what: String,
    },
    /// The store failed. Says which key, at which store, after which time.
    #[error("{doing}: {source}")]
    Store {
        /// What the worker was about to do.
        doing: &'static str,
        /// How the store failed.
        source: Box<StoreError>,
    },
}

/// Prints the `Display` text, so that `unwrap` and a `main` that returns the error show it.
impl fmt::Debug for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Ranks that are not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRanks {
    pub(crate) first: Vec<usize>,
    pub(crate) count: usize,
    pub(crate) is_complete: bool,
}

impl MissingRanks {
    /// `ranks` ascending; not all of them unless complete.
    pub(crate) fn new(mut ranks: Vec<usize>, is_complete: bool) -> Self {
        let count = ranks.len();
        ranks.truncate(RANKS_SHOWN_MAX);
        Self {
            first: ranks,
            count,
            is_complete,
        }
    }

    /// The lowest of them, 16 at most.
    #[must_use]
    pub fn first(&self) -> &[usize] {
        &self.first
    }
}

impl fmt::Display for MissingRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rank ")?;
        for (position, rank) in self.first.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{rank}")?;
        }
        let more = self.count - self.first.len();
        match (more, self.is_complete) {
            (0, true) => Ok(()),
            (_, true) => write!(f, " and {more} more"),
            (_, false) => write!(f, " and at least {more} more"),
        }
    }
}

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

    pub(super) const fn store(doing: &'static str) -> impl FnOnce(StoreError) -> Self {
        move |source| Self::Store {
            doing,
            source: Box::new(source),
        }
    }

    pub(super) fn lease(
        store: &BoundedStore,
        key: &str,
        elapsed: Duration,
        error: LeaseError,
    ) -> Self {
        match error {
            LeaseError::TimedOut { holder } => Self::NoTurn {
                key: store.full_key(key),
                store: store.label(),
                holder,
                elapsed,
            },
            LeaseError::Store(source) => Self::Store {
                doing: "taking the turn to change the list of members",
                source: Box::new(source),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_missing_ranks_are_named_and_the_others_counted() {
        let show =
            |count, is_complete| MissingRanks::new((1..=count).collect(), is_complete).to_string();
        assert_eq!(show(1, true), "rank 1");
        assert_eq!(show(3, true), "rank 1, 2, 3");
        assert!(show(16, true).ends_with(", 15, 16"));
        assert!(show(20, true).ends_with(", 15, 16 and 4 more"));
        assert!(show(20, false).ends_with(" and at least 4 more"));
    }
}
