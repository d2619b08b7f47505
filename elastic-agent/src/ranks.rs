//! Assigns ranks: each node of a round writes how many workers it has, and the node with group rank 0
//! assigns the ranks. That node reads and writes all values, in large requests; every other node one of each.
//!
//! The rule, [`assign_ranks`], is a pure function; the exchange goes through the round's store, with
//! PyTorch's keys and JSON (`torch/distributed/elastic/agent/server/api.py`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::{Store, StoreError};
use serde_json::{Value, json};

use crate::assignment::Assignment;
use crate::patience::{Cut, in_slices};
use crate::worker_list;

/// How many keys a request of the node with group rank 0 has at most: far below the limits of stores
/// (`WireLimits` in `c10d-store`), so that the store serves other nodes in between.
const KEYS_PER_REQUEST_MAX: usize = 1024;

/// The longest description of a node that is read.
const ROLE_INFO_BYTES_MAX: usize = 64 << 10;

/// The workers of one node, as it describes them to the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleInfo {
    /// The role of the workers.
    pub role: String,
    /// How many workers the node has.
    pub local_world_size: usize,
}

/// The ranks of one node's workers, which are consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankBlock {
    /// The global rank of the node's first worker.
    pub first_rank: usize,
    /// How many workers the round has.
    pub world_size: usize,
    /// The rank of the node's first worker within its role.
    pub first_role_rank: usize,
    /// How many workers of the round have that role.
    pub role_world_size: usize,
}

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
    #[error("{key:?} in the {store} holds {value:?}, which is not {expected}")]
    Malformed {
        /// The store.
        store: String,
        /// The key.
        key: String,
        /// The start of the value.
        value: String,
        /// The expected form.
        expected: &'static str,
    },

    /// The store failed.
    #[error("cannot exchange ranks: {0}")]
    Store(#[from] StoreError),

    /// The caller interrupted the exchange.
    #[error("the exchange of ranks was interrupted")]
    Interrupted,
}

impl From<Cut> for RanksError {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Interrupted => Self::Interrupted,
            Cut::Failed(error) => Self::Store(error),
        }
    }
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for RanksError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl RankBlock {
    /// The assignment of the worker `local_rank` of the node `group_rank`.
    #[must_use]
    pub fn assignment(
        &self,
        group_rank: usize,
        group_world_size: usize,
        local_world_size: usize,
        local_rank: usize,
    ) -> Assignment {
        Assignment {
            rank: self.first_rank + local_rank,
            local_rank,
            group_rank,
            role_rank: self.first_role_rank + local_rank,
            local_world_size,
            world_size: self.world_size,
            group_world_size,
            role_world_size: self.role_world_size,
        }
    }

    /// The ranks when all nodes have the same number of workers, of one role: no exchange is needed
    /// (`TORCH_ELASTIC_WORKER_IDENTICAL` in PyTorch, on which all nodes must agree).
    #[must_use]
    pub fn identical(group_rank: usize, group_world_size: usize, local_world_size: usize) -> Self {
        let first_rank = group_rank.saturating_mul(local_world_size);
        let world_size = group_world_size.saturating_mul(local_world_size);
        Self {
            first_rank,
            world_size,
            first_role_rank: first_rank,
            role_world_size: world_size,
        }
    }
}

/// Assigns ranks in the order of the nodes' group ranks.
///
/// ```
/// use elastic_agent::{RoleInfo, assign_ranks};
///
/// let node = |role: &str, local_world_size| RoleInfo { role: role.to_owned(), local_world_size };
/// let blocks = assign_ranks(&[node("trainer", 2), node("eval", 1), node("trainer", 1)]);
/// assert_eq!((blocks[2].first_rank, blocks[2].world_size), (3, 4));
/// assert_eq!((blocks[2].first_role_rank, blocks[2].role_world_size), (2, 3));
/// ```
#[must_use]
pub fn assign_ranks(nodes: &[RoleInfo]) -> Vec<RankBlock> {
    let mut world_size: usize = 0;
    let mut role_sizes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut firsts = Vec::with_capacity(nodes.len());
    for node in nodes {
        let role_size = role_sizes.entry(&node.role).or_default();
        firsts.push((world_size, *role_size));
        world_size = world_size.saturating_add(node.local_world_size);
        *role_size = role_size.saturating_add(node.local_world_size);
    }
    let blocks = nodes.iter().zip(firsts);
    blocks
        .map(|(node, (first_rank, first_role_rank))| RankBlock {
            first_rank,
            world_size,
            first_role_rank,
            role_world_size: role_sizes.get(node.role.as_str()).copied().unwrap_or(0),
        })
        .collect()
}

/// Reports this node's workers to the other nodes of a round, and returns the ranks of these workers.
/// `store` is the round's. Blocks until all nodes have reported theirs, for at most `timeout`,
/// indefinitely if `None`; `is_interrupted` is checked once a second.
///
/// # Errors
/// [`RanksError`]: nodes are missing, the store failed or holds a malformed value, or the caller
/// interrupted the exchange.
pub fn exchange_ranks(
    store: &dyn Store,
    group_rank: usize,
    group_world_size: usize,
    own: &RoleInfo,
    timeout: Option<Duration>,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<RankBlock, RanksError> {
    let started = Instant::now();
    let deadline = Deadline::after(started, timeout);
    let info = json!({
        "role": own.role,
        "rank": group_rank,
        "local_world_size": own.local_world_size,
    });
    store.set(&role_info_key(group_rank), info.to_string().as_bytes())?;
    if group_rank == 0 {
        assign_and_publish(store, group_world_size, started, deadline, is_interrupted)?;
    }
    let key = assigned_ranks_key(group_rank);
    let value =
        get(store, &key, deadline, is_interrupted)?.ok_or_else(|| RanksError::NotAssigned {
            group_world_size,
            waited: started.elapsed(),
        })?;
    parse_block(&value).ok_or_else(|| {
        let expected =
            "the ranks of this node's workers, as [first, all, first of role, all of role]";
        malformed(store, &key, &value, expected)
    })
}

fn assign_and_publish(
    store: &dyn Store,
    group_world_size: usize,
    started: Instant,
    deadline: Deadline,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(), RanksError> {
    let keys: Vec<String> = (0..group_world_size).map(role_info_key).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut nodes = Vec::with_capacity(group_world_size);
    for keys in keys.chunks(KEYS_PER_REQUEST_MAX) {
        if !wait(store, keys, deadline, is_interrupted)? {
            break;
        }
        for (key, value) in keys.iter().zip(store.multi_get(keys)?) {
            nodes.push(parse_role_info(&value).ok_or_else(|| {
                malformed(store, key, &value, "a node's role and number of workers")
            })?);
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
        .map(|(rank, block)| {
            let numbers = json!([
                block.first_rank,
                block.world_size,
                block.first_role_rank,
                block.role_world_size
            ]);
            (assigned_ranks_key(rank), numbers.to_string())
        })
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

fn role_info_key(group_rank: usize) -> String {
    format!("torchelastic/role_info/{group_rank}")
}

fn assigned_ranks_key(group_rank: usize) -> String {
    format!("torchelastic/assigned_ranks/{group_rank}")
}

/// Accepts any JSON object with the right fields: Python writes blanks that serde_json does not.
fn parse_role_info(value: &[u8]) -> Option<RoleInfo> {
    if value.len() > ROLE_INFO_BYTES_MAX {
        return None;
    }
    let json: Value = serde_json::from_slice(value).ok()?;
    let local_world_size = usize::try_from(json.get("local_world_size")?.as_u64()?).ok()?;
    Some(RoleInfo {
        role: json.get("role")?.as_str()?.to_owned(),
        // No machine has more, and sums stay far from overflow.
        local_world_size: Some(local_world_size).filter(|size| *size <= 1 << 24)?,
    })
}

fn parse_block(value: &[u8]) -> Option<RankBlock> {
    if value.len() > ROLE_INFO_BYTES_MAX {
        return None;
    }
    let [first_rank, world_size, first_role_rank, role_world_size]: [u64; 4] =
        serde_json::from_slice(value).ok()?;
    let number = |number: u64| usize::try_from(number).ok().filter(|it| *it <= 1 << 48);
    Some(RankBlock {
        first_rank: number(first_rank)?,
        world_size: number(world_size)?,
        first_role_rank: number(first_role_rank)?,
        role_world_size: number(role_world_size)?,
    })
}

fn malformed(store: &dyn Store, key: &str, value: &[u8], expected: &'static str) -> RanksError {
    const SHOWN_BYTES_MAX: usize = 120;
    let shown = &value[..value.len().min(SHOWN_BYTES_MAX)];
    RanksError::Malformed {
        store: store.label(),
        key: store.full_key(key),
        value: String::from_utf8_lossy(shown).into_owned(),
        expected,
    }
}

/// Waits until all keys exist. False after the deadline.
fn wait(
    store: &dyn Store,
    keys: &[&str],
    deadline: Deadline,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<bool, RanksError> {
    let wait = |timeout| store.wait_timeout(keys, Some(timeout));
    Ok(in_slices(deadline, is_interrupted, wait)?.is_some())
}

/// The value of a key as soon as it exists. `None` after the deadline.
fn get(
    store: &dyn Store,
    key: &str,
    deadline: Deadline,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<Option<Vec<u8>>, RanksError> {
    let get = |timeout| store.get_timeout(key, Some(timeout));
    Ok(in_slices(deadline, is_interrupted, get)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use c10d_store::HashStore;

    use super::*;

    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

    fn node(role: &str, local_world_size: usize) -> RoleInfo {
        RoleInfo {
            role: role.to_owned(),
            local_world_size,
        }
    }

    #[test]
    fn nodes_of_different_sizes_and_roles_get_ranks_in_order() {
        let store = Arc::new(HashStore::new());
        let nodes = [node("trainer", 2), node("eval", 1), node("trainer", 3)];
        let threads: Vec<_> = nodes
            .into_iter()
            .enumerate()
            .map(|(rank, own)| {
                let store = Arc::clone(&store);
                thread::spawn(move || exchange_ranks(&*store, rank, 3, &own, TIMEOUT, &|| false))
            })
            .collect();
        let blocks: Vec<RankBlock> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect();
        let block = |first_rank, first_role_rank, role_world_size| RankBlock {
            first_rank,
            world_size: 6,
            first_role_rank,
            role_world_size,
        };
        assert_eq!(blocks, [block(0, 0, 5), block(2, 0, 1), block(3, 2, 5)]);
        assert_eq!(
            store.get("torchelastic/assigned_ranks/1").unwrap(),
            b"[2,6,0,1]"
        );
    }

    #[test]
    fn json_as_python_writes_it_is_parsed() {
        let store = HashStore::new();
        let text = br#"{"role": "trainer", "rank": 1, "local_world_size": 2}"#;
        store.set("torchelastic/role_info/1", text).unwrap();
        let block = exchange_ranks(&store, 0, 2, &node("trainer", 1), TIMEOUT, &|| false).unwrap();
        assert_eq!(
            block,
            RankBlock {
                first_rank: 0,
                world_size: 3,
                first_role_rank: 0,
                role_world_size: 3
            }
        );
        let text = b"[1, 3, 1, 3]";
        store.set("torchelastic/assigned_ranks/1", text).unwrap();
        let block = exchange_ranks(&store, 1, 2, &node("trainer", 2), TIMEOUT, &|| false).unwrap();
        assert_eq!(block.first_rank, 1);
    }

    #[test]
    fn missing_nodes_are_named() {
        let store = HashStore::new();
        let timeout = Some(Duration::from_millis(10));
        store.set("torchelastic/role_info/2", b"{}").unwrap();
        let error = exchange_ranks(&store, 0, 4, &node("a", 1), timeout, &|| false).unwrap_err();
        assert!(
            matches!(&error, RanksError::NodesMissing { missing, .. } if missing == &[1, 3]),
            "{error}"
        );
        let error = exchange_ranks(&store, 1, 4, &node("a", 1), timeout, &|| false).unwrap_err();
        assert!(matches!(error, RanksError::NotAssigned { .. }), "{error}");
    }

    #[test]
    fn a_malformed_value_of_another_node_is_an_error_that_shows_it() {
        let store = HashStore::new();
        for text in [
            "",
            "{}",
            "[]",
            r#"{"role": 1, "local_world_size": 1}"#,
            r#"{"role": "a", "local_world_size": -1}"#,
        ] {
            store
                .set("torchelastic/role_info/1", text.as_bytes())
                .unwrap();
            let error =
                exchange_ranks(&store, 0, 2, &node("a", 1), TIMEOUT, &|| false).unwrap_err();
            assert!(
                matches!(error, RanksError::Malformed { .. }),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn an_interrupted_exchange_ends() {
        let store = HashStore::new();
        let error = exchange_ranks(&store, 1, 2, &node("a", 1), TIMEOUT, &|| true).unwrap_err();
        assert!(matches!(error, RanksError::Interrupted), "{error}");
    }

    #[test]
    fn identical_nodes_need_no_exchange() {
        let exchanged = assign_ranks(&[node("a", 4), node("a", 4), node("a", 4)]);
        for (rank, block) in exchanged.iter().enumerate() {
            assert_eq!(*block, RankBlock::identical(rank, 3, 4));
        }
    }
}
