//! Checks that the nodes of a measured rendezvous agree.

use super::protocol::Joined;
use crate::failure::Failure;

/// Checks that nodes are in one round of `nodes` nodes, and that each has a rank of its own. `dead` of the
/// ranks belong to nodes that were killed.
pub(super) fn check(joined: &Joined, nodes: usize, dead: usize) -> Result<(), Failure> {
    // A figure without agreement would be worthless.
    let disagreement = |detail: String| {
        Err(Failure::new(format!(
            "{nodes} nodes do not agree: {detail}"
        )))
    };
    let mut ranks = joined.ranks.clone();
    ranks.sort_unstable();
    if let Some(pair) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        return disagreement(format!("two have rank {}", pair[0]));
    }
    if let Some(rank) = ranks.last().filter(|rank| **rank >= nodes) {
        return disagreement(format!("one has rank {rank}"));
    }
    if ranks.len() + dead != nodes {
        return disagreement(format!(
            "{} have ranks, and {dead} with a rank were killed",
            ranks.len()
        ));
    }
    if let Some(world) = joined.worlds.iter().find(|world| world.nodes != nodes) {
        return disagreement(format!("one sees {} nodes", world.nodes));
    }
    if let [first, other, ..] = &*joined.worlds {
        return disagreement(format!(
            "one is in round {} with the workers' store at {}, one in round {} with it at {}",
            first.round, first.master, other.round, other.master
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::protocol::World;
    use super::*;

    fn joined(nodes: &[(usize, usize, i64)]) -> Joined {
        let mut joined = Joined::default();
        for &(rank, world_size, round) in nodes {
            let world = World {
                round,
                nodes: world_size,
                master: "host:1".to_owned(),
            };
            joined.add(rank, world, Duration::ZERO);
        }
        joined
    }

    #[test]
    fn agreement_is_one_world_with_each_rank_once() {
        let agreed = joined(&[(1, 3, 0), (0, 3, 0), (2, 3, 0)]);
        assert!(check(&agreed, 3, 0).is_ok());
        for (wrong, text) in [
            ([(0, 2, 0), (0, 2, 0)], "two have rank 0"),
            ([(0, 2, 0), (2, 2, 0)], "one has rank 2"),
            ([(0, 2, 0), (1, 3, 0)], "one sees 3 nodes"),
            ([(0, 2, 0), (1, 2, 1)], "one in round 1 with it at host:1"),
        ] {
            let error = check(&joined(&wrong), 2, 0).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn only_a_killed_node_leaves_a_rank_unused() {
        let others = joined(&[(0, 3, 0), (2, 3, 0)]);
        assert!(check(&others, 3, 1).is_ok());
        for dead in [0, 2] {
            let error = check(&others, 3, dead).unwrap_err().to_string();
            assert!(error.contains("2 have ranks"), "{error}");
        }
    }
}
