//! The laws that hold in every history, whichever nodes write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::values::goal::Joined;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;

/// How long a request of a dead node can be on its way, or in the queue of a replaced holder. In the queue of a paused
/// holder it stays for longer.
const ON_ITS_WAY: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(super) struct Laws {
    /// The ranks of each complete round that was ever stored.
    rounds: BTreeMap<i64, BTreeMap<NodeId, usize>>,
    /// The nodes that have joined, by round and rank.
    joined: BTreeMap<(i64, usize), NodeId>,
    firsts: BTreeMap<i64, NodeId>,
    /// How many members each round had when it was complete.
    sizes: BTreeMap<i64, usize>,
    left: BTreeSet<NodeId>,
    /// The nodes that were on a list since they began to join, and are on none now.
    removed: BTreeSet<NodeId>,
    died: BTreeMap<NodeId, Duration>,
    /// The times until which nodes were paused.
    stopped_until: BTreeMap<NodeId, Duration>,
}

impl Laws {
    pub(super) fn on_death(&mut self, node: &NodeId, now: Duration) {
        self.died.insert(node.clone(), now);
    }

    pub(super) fn on_stop(&mut self, node: &NodeId, until: Duration) {
        self.stopped_until.insert(node.clone(), until);
    }

    pub(super) fn on_join(&mut self, node: &NodeId) {
        self.left.remove(node);
        self.removed.remove(node);
        self.died.remove(node);
    }

    /// Whether these are all members that the round had when it was complete.
    pub(super) fn are_all_of(&self, round: i64, nodes: &BTreeSet<NodeId>) -> bool {
        self.sizes.get(&round) == Some(&nodes.len())
    }

    /// Checks that a node that has left is on no list until it joins again, because no request is applied a second
    /// time. If it was on no list before, a write that lists it may be on its way, from a holder whose renewals it has
    /// not read.
    pub(super) fn on_left(&mut self, node: &NodeId, now: Duration) {
        if self.removed.contains(node) {
            self.left.insert(node.clone());
        } else {
            self.died.insert(node.clone(), now);
        }
    }

    pub(super) fn on_write(
        &mut self,
        writer: &NodeId,
        before: &RendezvousState,
        state: &RendezvousState,
        settings: &RendezvousSettings,
        now: Duration,
        is_open: bool,
    ) {
        assert!(state.round >= before.round, "the round decreases");
        assert!(state.round <= before.round + 1, "a round is left out");
        assert!(state.closed >= before.closed, "it is opened again");
        check_state(state, settings);
        for node in before.last_heartbeats.keys() {
            if !state.last_heartbeats.contains_key(node) {
                self.removed.insert(node.clone());
            }
        }
        for node in state.last_heartbeats.keys() {
            self.removed.remove(node);
            let is_new = !before.last_heartbeats.contains_key(node);
            assert!(
                !is_new || !self.left.contains(node),
                "{writer} lists {node}, which has left"
            );
            if let Some(&died) = self.died.get(node) {
                let since = self
                    .stopped_until
                    .get(writer)
                    .map_or(died, |it| died.max(*it));
                assert!(
                    !is_new || now.saturating_sub(since) < ON_ITS_WAY,
                    "{writer} lists {node}, which died long ago"
                );
            }
        }
        if before.complete && before.round == state.round {
            assert!(state.complete, "round {} is open again", state.round);
            let known = &before.participants;
            let grown = state.participants.iter();
            for (node, rank) in grown.filter(|(node, _)| !known.contains_key(*node)) {
                assert!(
                    is_open && node == writer,
                    "{writer} lets {node} into a complete round"
                );
                // The place of a lost member, or of the node itself, which has left it.
                let rank = usize::try_from(*rank).expect("a rank");
                let ranks = self.rounds.entry(state.round).or_default();
                ranks.retain(|known, taken| *taken != rank && known != node);
                self.joined.remove(&(state.round, rank));
            }
        }
        if state.complete {
            let count = state.participants.len();
            self.sizes.entry(state.round).or_insert(count);
            let ranks = self.rounds.entry(state.round).or_default();
            for (node, &rank) in &state.participants {
                let rank = usize::try_from(rank).expect("a rank");
                match ranks.get(node) {
                    Some(&known) => assert_eq!(known, rank, "{node} changes its rank"),
                    None => _ = ranks.insert(node.clone(), rank),
                }
            }
            let all: BTreeSet<usize> = ranks.values().copied().collect();
            assert_eq!(all.len(), ranks.len(), "two nodes have one rank");
        }
    }

    /// Checks that a joined node's view is true about a state that was stored.
    pub(super) fn on_joined(&mut self, node: &NodeId, round: i64, joined: &Joined) {
        let ranks = self.rounds.get(&round);
        let rank = ranks.and_then(|ranks| ranks.get(node));
        assert_eq!(rank, Some(&joined.rank), "{node} believes {joined:?}");
        let before = self
            .joined
            .insert((round, joined.rank), node.clone())
            .filter(|other| other != node);
        assert_eq!(before, None, "two nodes have rank {}", joined.rank);
        assert!(joined.rank < joined.world_size, "{joined:?}");
        if joined.has_entered {
            return;
        }
        let first = self
            .firsts
            .entry(round)
            .or_insert_with(|| joined.first.clone());
        assert_eq!(*first, joined.first, "two nodes are the first");
    }
}

/// Each node is on one list and has a heartbeat, and the round is as its nodes allow.
fn check_state(state: &RendezvousState, settings: &RendezvousSettings) {
    let lists = state.participants.keys().chain(&state.wait_list);
    let mut listed = BTreeSet::new();
    for node in lists.chain(&state.redundancy_list) {
        assert!(listed.insert(node), "{node} is on two lists");
        let has_heartbeat = state.last_heartbeats.contains_key(node);
        assert!(has_heartbeat, "{node} has no heartbeat");
    }
    assert_eq!(listed.len(), state.last_heartbeats.len(), "{state:?}");
    assert!(!state.complete || !state.participants.is_empty());
    assert!(!state.complete || state.deadline.is_none());
    assert!(
        state.deadline.is_none() || state.participants.len() >= settings.min_nodes,
        "a last call with too few participants: {state:?}"
    );
}
