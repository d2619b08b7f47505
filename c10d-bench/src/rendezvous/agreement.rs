//! The results of the nodes of a measured rendezvous, and a check that they agree.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Nodes that know their ranks. Times are of the [clock](super::node::now) of all processes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Joined {
    /// When the last of them knew it.
    pub(super) last_at: Duration,
    pub(super) ranks: Vec<usize>,
    /// The distinct rounds of the nodes, which should be one.
    pub(super) worlds: Vec<World>,
    pub(super) writes_tried: u64,
    pub(super) writes_done: u64,
    pub(super) state_bytes: u64,
}

/// The round of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct World {
    pub(super) round: i64,
    pub(super) nodes: usize,
    /// The address of the workers' store.
    pub(super) master: String,
}

impl Joined {
    pub(super) fn add(&mut self, rank: usize, world: World, at: Duration) {
        self.merge(Self {
            last_at: at,
            ranks: vec![rank],
            worlds: vec![world],
            ..Self::default()
        });
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.last_at = self.last_at.max(other.last_at);
        self.ranks.extend(other.ranks);
        for world in other.worlds {
            if !self.worlds.contains(&world) {
                self.worlds.push(world);
            }
        }
        self.writes_tried += other.writes_tried;
        self.writes_done += other.writes_done;
        self.state_bytes += other.state_bytes;
    }
}

/// Checks that all are in one round of `nodes` nodes, and that no two have the same rank.
pub(super) fn check(joined: &Joined, nodes: usize) -> Result<(), Failure> {
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
    if ranks.len() != nodes {
        return disagreement(format!("{} have ranks", ranks.len()));
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
        assert!(check(&agreed, 3).is_ok());
        for (wrong, text) in [
            ([(0, 2, 0), (0, 2, 0)], "two have rank 0"),
            ([(0, 2, 0), (2, 2, 0)], "one has rank 2"),
            ([(0, 2, 0), (1, 3, 0)], "one sees 3 nodes"),
            ([(0, 2, 0), (1, 2, 1)], "one in round 1 with it at host:1"),
        ] {
            let error = check(&joined(&wrong), 2).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_node_without_a_rank_is_missed() {
        let error = check(&joined(&[(0, 3, 0), (2, 3, 0)]), 3).unwrap_err();
        assert!(error.to_string().contains("2 have ranks"), "{error}");
    }
}
