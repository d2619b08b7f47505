//! The ranks of a running round, for nodes that enter it: a node writes those of its workers, and one that enters takes
//! those of the node whose place it has, or new ones behind all that the round ever had. A count of starts and one of
//! processes give each process of a worker its numbers, even if the launcher itself is started again.
//!
//! Only jobs have these names whose workers survive others.

use elastic_rendezvous::{BoardError, RoundBoard};
use serde_json::{Value, json};

use crate::ranks::{RankBlock, RoleInfo};

/// How many workers the round had when it began.
const FIRST_SIZE: &str = "c10d/places/size";

/// How many ranks entering nodes have got besides, and how many processes were started besides the first.
const RANKS: &str = "c10d/places/ranks";
const SERIALS: &str = "c10d/places/serials";

/// The place of a node in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ranks: RankBlock,
    /// How many workers the round had when it began.
    pub(crate) first_size: usize,
}

fn place_name(group_rank: usize) -> String {
    format!("c10d/places/{group_rank}")
}

/// Writes the ranks of a node's workers, before the round is opened.
pub(crate) fn publish(
    board: &RoundBoard,
    group_rank: usize,
    place: &Place,
    node: &RoleInfo,
) -> Result<(), BoardError> {
    let text = json!({
        "role": node.role,
        "workers": node.local_world_size,
        "ranks": place.ranks.numbers(),
    });
    board.put(FIRST_SIZE, place.first_size.to_string())?;
    Ok(board.put(&place_name(group_rank), text.to_string())?)
}

/// The ranks for the workers of a node that has entered the round with this group rank.
pub(crate) fn take(
    board: &RoundBoard,
    group_rank: usize,
    node: &RoleInfo,
) -> Result<Place, BoardError> {
    // Without a value, the keys of the round were removed: the error shows the empty value.
    let first_size = board.read(FIRST_SIZE)?.unwrap_or_default();
    let first_size = board.parsed(FIRST_SIZE, &first_size, "a number of workers", |text| {
        let number: u64 = str::from_utf8(text).ok()?.parse().ok()?;
        RankBlock::number(number)
    })?;
    let name = place_name(group_rank);
    if let Some(text) = board.read(&name)?
        && let Ok(ranks) = board.parsed(&name, &text, "ranks", |text| ranks_of(text, node))
    {
        return Ok(Place { ranks, first_size });
    }
    let taken = board.take_numbers(RANKS, node.local_world_size)?;
    let world_size = first_size.saturating_add(usize::try_from(taken).unwrap_or_default());
    let first_rank = world_size.saturating_sub(node.local_world_size);
    Ok(Place {
        ranks: RankBlock {
            first_rank,
            world_size,
            first_role_rank: first_rank,
            role_world_size: world_size,
        },
        first_size,
    })
}

/// The number of a start of workers on a node, from 1.
pub(crate) fn next_start(board: &RoundBoard, group_rank: usize) -> Result<u64, BoardError> {
    Ok(board.take_numbers(&format!("c10d/starts/{group_rank}"), 1)?)
}

/// Numbers for so many processes, which no other process of the round has; the first of them.
pub(crate) fn next_serials(
    board: &RoundBoard,
    first_size: usize,
    count: usize,
) -> Result<u64, BoardError> {
    let last = board.take_numbers(SERIALS, count)?;
    Ok((first_size as u64)
        .saturating_add(last)
        .saturating_sub(count as u64))
}

/// The ranks in the description of a place, if they fit the workers of this node.
fn ranks_of(text: &[u8], node: &RoleInfo) -> Option<RankBlock> {
    let json: Value = serde_json::from_slice(text).ok()?;
    let is_like = json.get("role")?.as_str()? == node.role
        && json.get("workers")?.as_u64()? == node.local_world_size as u64;
    let numbers = serde_json::from_value(json.get("ranks")?.clone()).ok()?;
    RankBlock::from_numbers(numbers).filter(|_| is_like)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_store::HashStore;

    use super::*;

    fn node(local_world_size: usize) -> RoleInfo {
        let role = "trainer".to_owned();
        RoleInfo {
            role,
            local_world_size,
        }
    }

    /// A round of two nodes with two workers each.
    fn round() -> RoundBoard {
        let board = RoundBoard::new(Arc::new(HashStore::new()));
        for rank in 0..2 {
            let ranks = RankBlock::identical(rank, 2, 2);
            let first_size = 4;
            publish(&board, rank, &Place { ranks, first_size }, &node(2)).unwrap();
        }
        board
    }

    #[test]
    fn the_ranks_of_a_lost_node_are_taken_over_by_one_like_it() {
        let place = take(&round(), 1, &node(2)).unwrap();
        assert_eq!(place.ranks, RankBlock::identical(1, 2, 2));
        assert_eq!(place.first_size, 4);
    }

    #[test]
    fn another_node_gets_ranks_behind_all_others() {
        let board = round();
        for (rank, workers, first_rank) in [(2, 2, 4), (1, 3, 6), (3, 1, 9)] {
            let place = take(&board, rank, &node(workers)).unwrap();
            assert_eq!(place.ranks.first_rank, first_rank);
            assert_eq!(place.ranks.world_size, first_rank + workers);
            assert_eq!(place.first_size, 4);
            publish(&board, rank, &place, &node(workers)).unwrap();
            // Its place, once it is lost.
            assert_eq!(take(&board, rank, &node(workers)).unwrap(), place);
        }
    }

    #[test]
    fn no_two_processes_have_one_serial_or_one_start() {
        let board = round();
        assert_eq!(next_serials(&board, 4, 1).unwrap(), 4);
        assert_eq!(next_serials(&board, 4, 3).unwrap(), 5);
        assert_eq!(next_serials(&board, 4, 1).unwrap(), 8);
        for (rank, start) in [(0, 1), (1, 1), (0, 2)] {
            assert_eq!(next_start(&board, rank).unwrap(), start);
        }
    }

    #[test]
    fn bytes_of_strangers_are_no_place() {
        let board = round();
        let long = format!("{{\"role\":\"{}\"}}", "x".repeat(64 << 10));
        for text in [
            "",
            "[]",
            "{\"role\":\"trainer\",\"workers\":2,\"ranks\":[0,-1,0,0]}",
            "{\"role\":\"trainer\",\"workers\":2,\"ranks\":[0,18446744073709551615,0,0]}",
            &long,
        ] {
            board.put("c10d/places/1", text).unwrap();
            assert!(take(&board, 1, &node(2)).unwrap().ranks.first_rank >= 4);
        }
        board.put(FIRST_SIZE, b"many").unwrap();
        let error = take(&board, 1, &node(2)).unwrap_err().to_string();
        assert!(
            error.contains("which is not a number of workers"),
            "{error}"
        );
    }
}
