//! Counts the starts of workers on one node of a round, so that no two processes of a worker have the same number: also if
//! the launcher itself is started again.

use c10d_store::{Store, StoreError};

fn key(group_rank: usize) -> String {
    format!("c10d/starts/{group_rank}")
}

/// The number of a start, from 1. `store` is the round's.
pub(crate) fn next(store: &dyn Store, group_rank: usize) -> Result<u64, StoreError> {
    let count = store.add(&key(group_rank), 1)?;
    Ok(u64::try_from(count).unwrap_or_default())
}

/// Removes the count from the store of an earlier round.
pub(crate) fn forget(store: &dyn Store, group_rank: usize) -> Result<(), StoreError> {
    store.delete_key(&key(group_rank)).map(drop)
}
