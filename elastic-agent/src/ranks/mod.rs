//! Assigns ranks: each node of a round writes how many workers it has, and the node with group rank 0
//! assigns the ranks. That node reads and writes all values, in large requests; every other node one of each.
//!
//! The rule, [`assign_ranks`], is a pure function; the exchange goes through the round's store, with
//! PyTorch's keys and JSON (`torch/distributed/elastic/agent/server/api.py`).

mod assign;
mod error;
mod message;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use c10d_store::{Store, StoreError, StoreExt};

pub use self::assign::{RankBlock, RoleInfo, assign_ranks};
pub use self::error::RanksError;
use self::message::{
    assigned_ranks_key, block_text, parse_block, parse_role_info, role_info_key, role_info_text,
};
use crate::exchanged::{MalformedValue, in_time};

/// How many keys a request of the node with group rank 0 has at most: far below the limits of stores
/// (`WireLimits` in `c10d-store`), so that the store serves other nodes in between.
const KEYS_PER_REQUEST_MAX: usize = 1024;

/// Reports this node's workers to the other nodes of a round, and returns the ranks of these workers.
/// `store` is the round's. Blocks until all nodes have reported theirs, for at most `timeout`,
/// indefinitely if `None`, or until `cancel` ends the exchange.
///
/// # Errors
/// [`RanksError`]: nodes are missing, the store failed or holds a malformed value, or the
/// exchange was cancelled.
pub fn exchange_ranks(
    store: &dyn Store,
    group_rank: usize,
    group_world_size: usize,
    own: &RoleInfo,
    timeout: impl Into<Option<Duration>>,
    cancel: &Cancel,
) -> Result<RankBlock, RanksError> {
    let started = Instant::now();
    let deadline = Deadline::after(started, timeout);
    let store = store.with_cancel(cancel);
    let store = &*store;
    let info = role_info_text(group_rank, own);
    store.set(&role_info_key(group_rank), info.as_bytes())?;
    if group_rank == 0 {
        assign_and_publish(store, group_world_size, started, deadline)?;
    }
    let key = assigned_ranks_key(group_rank);
    let value = store.get_timeout(&key, deadline.remaining(Instant::now()));
    let value = in_time(value)?.ok_or_else(|| RanksError::NotAssigned {
        group_world_size,
        waited: started.elapsed(),
    })?;
    parse_block(&value).ok_or_else(|| {
        let expected =
            "the ranks of this node's workers, as [first, all, first of role, all of role]";
        MalformedValue::new(store, &key, &value, expected).into()
    })
}

fn assign_and_publish(
    store: &dyn Store,
    group_world_size: usize,
    started: Instant,
    deadline: Deadline,
) -> Result<(), RanksError> {
    let keys: Vec<String> = (0..group_world_size).map(role_info_key).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut nodes = Vec::with_capacity(group_world_size);
    for keys in keys.chunks(KEYS_PER_REQUEST_MAX) {
        let waited = store.wait_timeout(keys, deadline.remaining(Instant::now()));
        if in_time(waited)?.is_none() {
            break;
        }
        for (key, value) in keys.iter().zip(store.multi_get(keys)?) {
            let expected = "a node's role and number of workers";
            let node = parse_role_info(&value)
                .ok_or_else(|| MalformedValue::new(store, key, &value, expected))?;
            nodes.push(node);
        }
    }
    if nodes.len() < group_world_size {
        let mut missing = Vec::new();
        for (chunk, keys) in keys.chunks(KEYS_PER_REQUEST_MAX).enumerate() {
            find_missing(store, keys, chunk * KEYS_PER_REQUEST_MAX, &mut missing)?;
        }
        return Err(RanksError::NodesMissing {
            missing,
            group_world_size,
            waited: started.elapsed(),
        });
    }
    let assigned: Vec<(String, String)> = assign_ranks(&nodes)
        .iter()
        .enumerate()
        .map(|(rank, block)| (assigned_ranks_key(rank), block_text(block)))
        .collect();
    let pairs: Vec<(&str, &[u8])> = assigned
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_bytes()))
        .collect();
    for pairs in pairs.chunks(KEYS_PER_REQUEST_MAX) {
        store.multi_set(pairs)?;
    }
    Ok(())
}

/// Adds the ranks of missing keys to `missing`; `first` is the rank of the first key. Halves the keys until
/// all or one of them is missing, as a request only tells whether all exist.
fn find_missing(
    store: &dyn Store,
    keys: &[&str],
    first: usize,
    missing: &mut Vec<usize>,
) -> Result<(), StoreError> {
    if store.check(keys)? {
        return Ok(());
    }
    if keys.len() == 1 {
        missing.push(first);
        return Ok(());
    }
    let (left, right) = keys.split_at(keys.len() / 2);
    find_missing(store, left, first, missing)?;
    find_missing(store, right, first + left.len(), missing)
}

/// Removes the values of a node from the store of an earlier round.
pub(crate) fn forget_ranks(store: &dyn Store, group_rank: usize) -> Result<(), StoreError> {
    store.delete_key(&role_info_key(group_rank))?;
    store.delete_key(&assigned_ranks_key(group_rank)).map(drop)
}
