//! Assigns ranks: each node of a round writes how many workers it has, and the node with group rank 0
//! assigns the ranks. That node reads and writes all values, in large requests; every other node one of each.
//!
//! The rule, [`assign_ranks`], is a pure function; the exchange goes through the board of the round, with
//! PyTorch's names and JSON (`torch/distributed/elastic/agent/server/api.py`).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use c10d_socket::Cancel;
use elastic_rendezvous::{BoardError, RoundBoard, Wait};
use serde_json::{Value, json};

/// The ranks of one worker in a round.
///
/// A *group* is the workers of one node, so a group rank is a node's rank. A *role* names what workers do
/// (`--role`); in a job with a single role, role ranks equal global ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Among all workers, from 0.
    pub rank: usize,
    /// Among the workers of this node, from 0.
    pub local_rank: usize,
    /// The node's rank among the nodes, from 0.
    pub group_rank: usize,
    /// Among the workers of this role, from 0.
    pub role_rank: usize,
    /// The number of workers of this node.
    pub local_world_size: usize,
    /// The number of workers of the round.
    pub world_size: usize,
    /// The number of nodes of the round.
    pub group_world_size: usize,
    /// The number of workers of the round with this role.
    pub role_world_size: usize,
}

fn role_info(group_rank: usize) -> String {
    format!("torchelastic/role_info/{group_rank}")
}

fn assigned_ranks(group_rank: usize) -> String {
    format!("torchelastic/assigned_ranks/{group_rank}")
}

/// Reports this node's workers to the other nodes of a round, and returns the ranks of these workers. Blocks until all
/// nodes have reported their workers, for at most `timeout`, indefinitely if `None`, or until `cancel` interrupts the
/// exchange.
///
/// # Errors
/// [`BoardError`]: nodes are missing, the store failed or holds a malformed value, or the
/// exchange was cancelled.
pub fn exchange_ranks(
    board: &RoundBoard,
    group_rank: usize,
    group_world_size: usize,
    own: &RoleInfo,
    timeout: impl Into<Option<Duration>>,
    cancel: &Cancel,
) -> Result<RankBlock, BoardError> {
    let wait = Wait::new(timeout);
    let board = board.with_cancel(cancel);
    board.put(&role_info(group_rank), role_info_text(group_rank, own))?;
    if group_rank == 0 {
        assign_all(&board, group_world_size, wait)?;
    }
    let name = assigned_ranks(group_rank);
    let value = board.await_one(&name, "assigned ranks", wait)?;
    let expected = "the ranks of this node's workers, as [first, all, first of role, all of role]";
    board.parsed(&name, &value, expected, parse_block)
}

fn assign_all(board: &RoundBoard, group_world_size: usize, wait: Wait) -> Result<(), BoardError> {
    let names: Vec<String> = (0..group_world_size).map(role_info).collect();
    let values = board.await_all(&names, "number of workers", wait)?;
    let expected = "a node's role and number of workers";
    let nodes = names
        .iter()
        .zip(&values)
        .map(|(name, value)| board.parsed(name, value, expected, parse_role_info))
        .collect::<Result<Vec<RoleInfo>, _>>()?;
    let assigned: Vec<(String, String)> = assign_ranks(&nodes)
        .iter()
        .enumerate()
        .map(|(rank, block)| (assigned_ranks(rank), block_text(block)))
        .collect();
    Ok(board.put_all(&assigned)?)
}

/// The workers of one node, as it describes them to the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleInfo {
    /// The role of the workers.
    pub role: String,
    /// The number of workers of the node.
    pub local_world_size: usize,
}

/// The ranks of one node's workers, which are consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankBlock {
    /// The global rank of the node's first worker.
    pub first_rank: usize,
    /// The number of workers of the round.
    pub world_size: usize,
    /// The rank of the node's first worker within its role.
    pub first_role_rank: usize,
    /// The number of workers of the round with that role.
    pub role_world_size: usize,
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

    /// The numbers that nodes write for each other, in PyTorch's order.
    pub(crate) const fn numbers(&self) -> [usize; 4] {
        [
            self.first_rank,
            self.world_size,
            self.first_role_rank,
            self.role_world_size,
        ]
    }

    /// The block with these [numbers](Self::numbers) of another node.
    pub(crate) fn from_numbers(numbers: [u64; 4]) -> Option<Self> {
        let [first_rank, world_size, first_role_rank, role_world_size] = numbers.map(Self::number);
        Some(Self {
            first_rank: first_rank?,
            world_size: world_size?,
            first_role_rank: first_role_rank?,
            role_world_size: role_world_size?,
        })
    }

    /// Checks a number of ranks that another node has written: jobs have fewer, and sums stay far from overflow.
    pub(crate) fn number(number: u64) -> Option<usize> {
        usize::try_from(number).ok().filter(|_| number <= 1 << 48)
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

fn role_info_text(group_rank: usize, node: &RoleInfo) -> String {
    let info = json!({
        "role": node.role,
        "rank": group_rank,
        "local_world_size": node.local_world_size,
    });
    info.to_string()
}

fn block_text(block: &RankBlock) -> String {
    json!(block.numbers()).to_string()
}

/// Accepts any JSON object with the right fields: Python writes blanks that serde_json does not.
fn parse_role_info(value: &[u8]) -> Option<RoleInfo> {
    let json: Value = serde_json::from_slice(value).ok()?;
    let local_world_size = json.get("local_world_size")?.as_u64()?;
    Some(RoleInfo {
        role: json.get("role")?.as_str()?.to_owned(),
        // A machine cannot have more workers than this.
        local_world_size: RankBlock::number(local_world_size).filter(|size| *size <= 1 << 24)?,
    })
}

fn parse_block(value: &[u8]) -> Option<RankBlock> {
    RankBlock::from_numbers(serde_json::from_slice(value).ok()?)
}
