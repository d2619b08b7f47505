//! Assigns ranks: each node of a round writes how many workers it has, and the node with group rank 0
//! assigns the ranks. That node reads and writes all values, in large requests; every other node one of each.
//!
//! The rule, [`assign_ranks`], is a pure function; the exchange goes through the board of the round, with
//! PyTorch's names and JSON (`torch/distributed/elastic/agent/server/api.py`).

mod assign;
mod message;
#[cfg(test)]
mod tests;

use std::time::Duration;

use c10d_socket::Cancel;
use elastic_rendezvous::{BoardError, RoundBoard, Wait};

pub use self::assign::{RankBlock, RoleInfo, assign_ranks};
use self::message::{block_text, parse_block, parse_role_info, role_info_text};

fn role_info(group_rank: usize) -> String {
    format!("torchelastic/role_info/{group_rank}")
}

fn assigned_ranks(group_rank: usize) -> String {
    format!("torchelastic/assigned_ranks/{group_rank}")
}

/// Reports this node's workers to the other nodes of a round, and returns the ranks of these workers.
/// Blocks until all nodes have reported theirs, for at most `timeout`, indefinitely if `None`, or until `cancel` ends the
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
