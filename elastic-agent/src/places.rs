//! The ranks of a running round, for nodes that enter it: a node writes those of its workers, and one that enters takes
//! those of the node whose place it has, or new ones behind all that the round ever had.
//!
//! The keys are in the store of the round, which is cleared as a whole later. Only jobs have them whose workers survive
//! others.

use c10d_store::{Store, StoreError, StoreExt};
use serde_json::{Value, json};

use crate::exchanged::MalformedValue;
use crate::incarnation::until_answered;
use crate::ranks::{RankBlock, RanksError, RoleInfo};

/// How many workers the round had when it began.
const FIRST_SIZE_KEY: &str = "c10d/places/size";
/// How many ranks entering nodes have got besides, and how many processes were started besides the first.
const RANKS_KEY: &str = "c10d/places/ranks";
const SERIALS_KEY: &str = "c10d/places/serials";

/// The longest description of a place that is read.
const PLACE_BYTES_MAX: usize = 64 << 10;

/// No job has more ranks or processes.
const COUNT_MAX: u64 = 1 << 48;

/// The place of a node in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ranks: RankBlock,
    /// How many workers the round had when it began.
    pub(crate) first_size: usize,
}

fn place_key(group_rank: usize) -> String {
    format!("c10d/places/{group_rank}")
}

/// Writes the ranks of a node's workers, before the round is opened.
pub(crate) fn publish(
    store: &dyn Store,
    group_rank: usize,
    place: &Place,
    node: &RoleInfo,
) -> Result<(), StoreError> {
    let ranks = &place.ranks;
    let text = json!({
        "role": node.role,
        "workers": node.local_world_size,
        "ranks": [ranks.first_rank, ranks.world_size, ranks.first_role_rank, ranks.role_world_size],
    });
    store.set(FIRST_SIZE_KEY, place.first_size.to_string().as_bytes())?;
    store.set(&place_key(group_rank), text.to_string().as_bytes())
}

/// The ranks for the workers of a node that has entered the round with this group rank.
pub(crate) fn take(
    store: &dyn Store,
    group_rank: usize,
    node: &RoleInfo,
) -> Result<Place, RanksError> {
    let first_size = store.get(FIRST_SIZE_KEY)?;
    let first_size = number(&first_size).ok_or_else(|| {
        MalformedValue::new(store, FIRST_SIZE_KEY, &first_size, "a number of workers")
    })?;
    let known = store.try_get(&place_key(group_rank))?;
    if let Some(ranks) = known.and_then(|text| ranks_of(&text, node)) {
        return Ok(Place { ranks, first_size });
    }
    let count = i64::try_from(node.local_world_size).unwrap_or(i64::MAX);
    let taken = until_answered(|| store.add(RANKS_KEY, count))?;
    let taken = usize::try_from(taken).unwrap_or_default();
    let world_size = first_size.saturating_add(taken);
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

/// Numbers for so many processes, which no other process of the round has; the first of them. Some are left out if their
/// answer is lost.
pub(crate) fn next_serials(
    store: &dyn Store,
    first_size: usize,
    count: usize,
) -> Result<u64, StoreError> {
    let step = i64::try_from(count).unwrap_or(i64::MAX);
    let taken = until_answered(|| store.add(SERIALS_KEY, step))?;
    let taken = u64::try_from(taken).unwrap_or_default();
    Ok((first_size as u64)
        .saturating_add(taken)
        .saturating_sub(count as u64))
}

/// The ranks in the description of a place, if they fit the workers of this node.
fn ranks_of(text: &[u8], node: &RoleInfo) -> Option<RankBlock> {
    if text.len() > PLACE_BYTES_MAX {
        return None;
    }
    let json: Value = serde_json::from_slice(text).ok()?;
    let workers = json.get("workers")?.as_u64()?;
    let has_role = json.get("role")?.as_str()? == node.role;
    if !has_role || usize::try_from(workers) != Ok(node.local_world_size) {
        return None;
    }
    let number = |index: usize| {
        let number = json.get("ranks")?.get(index)?.as_u64()?;
        usize::try_from(number).ok().filter(|_| number <= COUNT_MAX)
    };
    Some(RankBlock {
        first_rank: number(0)?,
        world_size: number(1)?,
        first_role_rank: number(2)?,
        role_world_size: number(3)?,
    })
}

fn number(text: &[u8]) -> Option<usize> {
    let number: u64 = str::from_utf8(text).ok()?.parse().ok()?;
    usize::try_from(number).ok().filter(|_| number <= COUNT_MAX)
}

#[cfg(test)]
mod tests {
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
    fn round() -> HashStore {
        let store = HashStore::new();
        for rank in 0..2 {
            let ranks = RankBlock::identical(rank, 2, 2);
            let first_size = 4;
            publish(&store, rank, &Place { ranks, first_size }, &node(2)).unwrap();
        }
        store
    }

    #[test]
    fn the_ranks_of_a_lost_node_are_taken_over_by_one_like_it() {
        let place = take(&round(), 1, &node(2)).unwrap();
        assert_eq!(place.ranks, RankBlock::identical(1, 2, 2));
        assert_eq!(place.first_size, 4);
    }

    #[test]
    fn another_node_gets_ranks_behind_all_others() {
        let store = round();
        for (rank, workers, first_rank) in [(2, 2, 4), (1, 3, 6), (3, 1, 9)] {
            let place = take(&store, rank, &node(workers)).unwrap();
            assert_eq!(place.ranks.first_rank, first_rank);
            assert_eq!(place.ranks.world_size, first_rank + workers);
            assert_eq!(place.first_size, 4);
            publish(&store, rank, &place, &node(workers)).unwrap();
            // Its place, once it is lost.
            assert_eq!(take(&store, rank, &node(workers)).unwrap(), place);
        }
    }

    #[test]
    fn no_two_processes_have_one_serial() {
        let store = round();
        assert_eq!(next_serials(&store, 4, 1).unwrap(), 4);
        assert_eq!(next_serials(&store, 4, 3).unwrap(), 5);
        assert_eq!(next_serials(&store, 4, 1).unwrap(), 8);
    }

    #[test]
    fn bytes_of_strangers_are_no_place() {
        let store = round();
        let long = format!("{{\"role\":\"{}\"}}", "x".repeat(PLACE_BYTES_MAX));
        for text in [
            "",
            "[]",
            "{\"role\":\"trainer\",\"workers\":2,\"ranks\":[0,-1,0,0]}",
            "{\"role\":\"trainer\",\"workers\":2,\"ranks\":[0,18446744073709551615,0,0]}",
            &long,
        ] {
            store.set("c10d/places/1", text.as_bytes()).unwrap();
            assert!(take(&store, 1, &node(2)).unwrap().ranks.first_rank >= 4);
        }
        store.set(FIRST_SIZE_KEY, b"many").unwrap();
        let error = take(&store, 1, &node(2)).unwrap_err().to_string();
        assert!(
            error.contains("which is not a number of workers"),
            "{error}"
        );
    }
}
