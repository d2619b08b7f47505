//! The invariants of every simulation, checked at each write, read and join.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::store::Version;
use crate::node::NodeId;
use crate::settings::RendezvousSettings;
use crate::state::RendezvousState;

/// Ranks by node.
pub(super) type Ranks = BTreeMap<NodeId, i64>;

/// Records the history, and panics when an invariant is violated.
#[derive(Debug)]
pub(super) struct Invariants {
    settings: RendezvousSettings,
    /// The nodes of each completed round, by round.
    completed: BTreeMap<i64, Ranks>,
    /// The nodes that left a complete round themselves, or that a PyTorch node dropped, by round.
    departed: BTreeMap<i64, BTreeSet<NodeId>>,
    /// The nodes that have finished their joins, by round and rank.
    joined: BTreeMap<(i64, i64), NodeId>,
}

impl Invariants {
    pub(super) fn new(settings: RendezvousSettings) -> Self {
        Self {
            settings,
            completed: BTreeMap::new(),
            departed: BTreeMap::new(),
            joined: BTreeMap::new(),
        }
    }

    /// Checks a write: `writer` has replaced `before` by `after`.
    pub(super) fn on_write(
        &mut self,
        writer: &NodeId,
        is_torch: bool,
        before: Option<&Version>,
        after: &RendezvousState,
        now: Duration,
    ) {
        self.check_state(after);
        let nothing = RendezvousState::default();
        let old = before.map_or(&nothing, |version| &version.state);
        assert!(
            !old.closed || after.closed,
            "the closed rendezvous is open again"
        );
        let is_same_round = after.round == old.round;
        assert!(
            is_same_round || after.round == old.round + 1,
            "from round {} to {}",
            old.round,
            after.round
        );
        let nodes = after.participants.iter();
        let ranks: Ranks = nodes.map(|(node, rank)| (node.clone(), *rank)).collect();
        if old.complete && is_same_round {
            assert!(after.complete, "round {} is open again", after.round);
            for (node, rank) in &ranks {
                assert_eq!(old.participants.get(node), Some(rank), "rank of {node}");
            }
            for node in old.participants.keys() {
                if !ranks.contains_key(node) && (node == writer || is_torch) {
                    let departed = self.departed.entry(after.round).or_default();
                    departed.insert(node.clone());
                }
            }
        } else if after.complete {
            let count = ranks.len();
            let allowed = self.settings.min_nodes..=self.settings.max_nodes;
            assert!(allowed.contains(&count), "completed with {count} nodes");
            // In the order of the nodes, so no rank is given twice.
            assert!(ranks.values().copied().eq(0..count as i64), "{ranks:?}");
            let before = self.completed.insert(after.round, ranks);
            assert_eq!(before, None, "round {} completed twice", after.round);
        }
        let Some(before) = before.filter(|_| !is_torch) else {
            return;
        };
        for (node, at) in &before.written_at {
            if node != writer && !after.last_heartbeats.contains_key(node) {
                let silence = now - *at;
                assert!(
                    silence > self.settings.dead_after(),
                    "{writer} drops {node}, which wrote {silence:?} ago"
                );
            }
        }
    }

    /// Checks a read: a node of ours has read `version` at `at`, and `seen` is its copy without dead nodes.
    pub(super) fn on_adopt(
        &self,
        reader: &NodeId,
        version: &Version,
        at: Duration,
        seen: &RendezvousState,
    ) {
        for (node, written_at) in &version.written_at {
            if !seen.last_heartbeats.contains_key(node) {
                let silence = at - *written_at;
                assert!(
                    silence > self.settings.dead_after(),
                    "{reader} drops {node}, which wrote {silence:?} before"
                );
            }
        }
    }

    /// Checks a join: `node` has finished it and has read the state `seen`.
    pub(super) fn on_joined(&mut self, node: &NodeId, is_torch: bool, seen: &RendezvousState) {
        let round = seen.round;
        assert!(seen.complete, "{node} has joined a round that is open");
        let world = self.completed.get(&round).expect("the round was completed");
        let rank = *seen
            .participants
            .get(node)
            .expect("the node is in its round");
        let before = self.joined.insert((round, rank), node.clone());
        assert_eq!(before, None, "rank {rank} of round {round} given twice");
        for (member, rank) in &seen.participants {
            assert_eq!(world.get(member), Some(rank), "{node} in round {round}");
        }
        if is_torch {
            return;
        }
        // Its copy has all members except those that left before it read the state.
        for member in world.keys() {
            let departed = self.departed.get(&round);
            assert!(
                seen.participants.contains_key(member)
                    || departed.is_some_and(|departed| departed.contains(member)),
                "{node} has joined round {round} without {member}"
            );
        }
        let mut ranks: Vec<i64> = seen.participants.values().copied().collect();
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..seen.participants.len() as i64));
    }

    fn check_state(&self, state: &RendezvousState) {
        let mut listed = BTreeSet::new();
        let lists = state.participants.keys().chain(&state.wait_list);
        for node in lists.chain(&state.redundancy_list) {
            assert!(listed.insert(node), "{node} is on two lists");
            assert!(
                state.last_heartbeats.contains_key(node),
                "{node} has no heartbeat"
            );
        }
        assert_eq!(listed.len(), state.last_heartbeats.len(), "{state:?}");
        assert!(!state.complete || !state.participants.is_empty());
        assert!(!state.complete || state.deadline.is_none());
        assert!(
            state.deadline.is_none() || state.participants.len() >= self.settings.min_nodes,
            "a last call with too few participants: {state:?}"
        );
    }
}
