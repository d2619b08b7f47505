//! Why a node got no ranks.

use std::time::Duration;

use c10d_store::StoreError;

use crate::exchanged::MalformedValue;
use crate::worker_list;

/// Why a node got no ranks.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// Nodes of the round did not write in time how many workers they have.
    #[error(
        "{} of {group_world_size} nodes did not report their number of workers within {:.1} s: group rank {}",
        missing.len(),
        waited.as_secs_f64(),
        worker_list::ranks(missing)
    )]
    NodesMissing {
        /// Group ranks of the missing nodes.
        missing: Vec<usize>,
        /// How many nodes the round has.
        group_world_size: usize,
        /// How long this node waited.
        waited: Duration,
    },

    /// The node with group rank 0 did not assign the ranks in time.
    #[error(
        "the node with group rank 0 did not assign ranks within {:.1} s; it waits until all {group_world_size} \
         nodes of the round have reported their number of workers",
        waited.as_secs_f64()
    )]
    NotAssigned {
        /// How many nodes the round has.
        group_world_size: usize,
        /// How long this node waited.
        waited: Duration,
    },

    /// Another node wrote a value that cannot be parsed.
    #[error(transparent)]
    Malformed(#[from] MalformedValue),

    /// The store failed.
    #[error("cannot exchange ranks: {0}")]
    Store(#[source] StoreError),

    /// The caller interrupted the exchange.
    #[error("the exchange of ranks was interrupted")]
    Interrupted,
}

impl From<StoreError> for RanksError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Interrupted { .. } => Self::Interrupted,
            error => Self::Store(error),
        }
    }
}

c10d_socket::debug_as_display!(RanksError);
