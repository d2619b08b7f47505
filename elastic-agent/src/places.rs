//! The ranks of a running round, for nodes that enter it. Each node writes the ranks of its workers. An entering node
//! takes the ranks of the node whose place it has, or new ranks above all ranks that the round has ever had. The nodes
//! also agree on the name of the workers' membership group, and a counter numbers the starts of that group's processes.
//!
//! Only jobs whose workers survive other workers have these keys.

use std::ops::Range;

use c10d_membership::MemberKey;
use elastic_rendezvous::{BoardError, RoundBoard};
use serde_json::{Value, json};

use crate::ranks::{RankBlock, RoleInfo};

/// The number of workers that the round had when it began.
const FIRST_SIZE: &str = "c10d/places/size";

/// The number of additional ranks of entering nodes, and the number of processes that were started after the first
/// processes.
const RANKS: &str = "c10d/places/ranks";
const STARTS: &str = "c10d/places/serials";

/// The name of the membership group of the round's workers.
const GROUP: &str = "c10d/places/group";

/// The place of a node in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ranks: RankBlock,
    /// The number of workers that the round had when it began.
    pub(crate) first_size: usize,
}

/// One process of a worker, among all processes of the membership group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pub(crate) rank: usize,
    /// The number of the start: no other process of the group has it, and it ascends with each process of the rank.
    pub(crate) start: u64,
}

impl ProcessId {
    /// The name of the process in the membership group, which refuses an earlier process of the same rank.
    pub(crate) const fn member(self) -> MemberKey {
        MemberKey::new(self.rank as u64, self.start.saturating_add(1))
    }
}

fn place_name(group_rank: usize) -> String {
    format!("c10d/places/{group_rank}")
}

/// Writes the ranks of a node's workers, before the round is opened, and numbers their starts. The first processes that
/// start in a place have their ranks as numbers. A place that is known had workers: this launcher may have started them, or its
/// predecessor on a node that was itself started again in the same round.
pub(crate) fn occupy(
    board: &RoundBoard,
    group_rank: usize,
    has_entered: bool,
    place: &Place,
    node: &RoleInfo,
) -> Result<Vec<ProcessId>, BoardError> {
    let name = place_name(group_rank);
    let is_first = !has_entered && !board.has(&name)?;
    let text = json!({
        "role": node.role,
        "workers": node.local_world_size,
        "ranks": place.ranks.numbers(),
    });
    board.put(FIRST_SIZE, place.first_size.to_string())?;
    board.put(&name, text.to_string())?;
    let (first_rank, count) = (place.ranks.first_rank, node.local_world_size);
    let starts = match is_first {
        true => first_rank as u64..(first_rank + count) as u64,
        false => next_starts(board, place.first_size, count)?,
    };
    let processes = (first_rank..).zip(starts);
    Ok(processes
        .map(|(rank, start)| ProcessId { rank, start })
        .collect())
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

/// The name of the group of the round's workers, which the first node chooses: `fresh`. A group with the name `ended` is
/// over, so that the first node that starts its workers again in this round chooses another name.
pub(crate) fn group(
    board: &RoundBoard,
    ended: Option<&str>,
    fresh: &str,
) -> Result<String, BoardError> {
    let ended = ended.unwrap_or_default();
    let mut name = board.agree(GROUP, ended.as_bytes(), fresh.as_bytes())?;
    // A store that has no value returns the expected one.
    if name == ended.as_bytes() {
        name = board.agree(GROUP, b"", fresh.as_bytes())?;
    }
    board.parsed(GROUP, &name, "the name of a group", |name| {
        let name = str::from_utf8(name).ok()?;
        (!name.is_empty()).then(|| name.to_owned())
    })
}

/// Numbers the starts of later processes. No other process of the round has these numbers.
pub(crate) fn next_starts(
    board: &RoundBoard,
    first_size: usize,
    count: usize,
) -> Result<Range<u64>, BoardError> {
    let taken = board.take_numbers(STARTS, count)?;
    let end = (first_size as u64).saturating_add(taken);
    Ok(end.saturating_sub(count as u64)..end)
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
            let place = Place { ranks, first_size };
            let processes = occupy(&board, rank, false, &place, &node(2)).unwrap();
            let first = |rank| ProcessId {
                rank,
                start: rank as u64,
            };
            assert_eq!(processes, [first(2 * rank), first(2 * rank + 1)]);
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
            occupy(&board, rank, true, &place, &node(workers)).unwrap();
            // Once a node is lost, a new node gets its place.
            assert_eq!(take(&board, rank, &node(workers)).unwrap(), place);
        }
    }

    /// docs/spec/rendezvous.md, PLACES 1. The members of another round, of the same round in a store that came back empty, and of a round in which a group has
    /// ended, are another group.
    #[test]
    fn the_name_of_a_group_never_repeats() {
        let board = round();
        let name = |ended, fresh| group(&board, ended, fresh).unwrap();
        assert_eq!(name(None, "job/0/a"), "job/0/a");
        assert_eq!(name(None, "job/0/b"), "job/0/a");
        assert_eq!(name(Some("job/0/a"), "job/0/c"), "job/0/c");
        // The other node has learned it later.
        assert_eq!(name(Some("job/0/a"), "job/0/d"), "job/0/c");
        board.store().delete_key(GROUP).unwrap();
        assert_eq!(name(Some("job/0/c"), "job/0/e"), "job/0/e");
        board.put(GROUP, b"\xff").unwrap();
        let error = group(&board, None, "job/0/f").unwrap_err().to_string();
        assert!(
            error.contains("which is not the name of a group"),
            "{error}"
        );
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
