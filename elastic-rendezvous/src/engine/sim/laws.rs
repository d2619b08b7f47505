//! What holds in every history of a group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::group::message::Place;
use crate::values::node::NodeId;
use crate::values::state::RendezvousState;

/// How long a request of a node that died can be on its way, or in the queue of a holder that is replaced. In the queue
/// of one that stands still it stays for longer.
const ON_ITS_WAY: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(super) struct Laws {
    /// The ranks of each complete round that was ever stored.
    rounds: BTreeMap<i64, BTreeMap<NodeId, usize>>,
    /// Who has joined with which rank.
    joined: BTreeMap<(i64, usize), NodeId>,
    firsts: BTreeMap<i64, NodeId>,
    left: BTreeSet<NodeId>,
    died: BTreeMap<NodeId, Duration>,
    /// Until when nodes stood still.
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
    }

    /// A node that has left is on no list until it joins again: no request is applied a second time.
    pub(super) fn on_left(&mut self, node: &NodeId) {
        self.left.insert(node.clone());
    }

    pub(super) fn on_write(
        &mut self,
        writer: &NodeId,
        before: &RendezvousState,
        state: &RendezvousState,
        now: Duration,
    ) {
        assert!(state.round >= before.round, "the round decreases");
        assert!(state.round <= before.round + 1, "a round is left out");
        assert!(state.closed >= before.closed, "it is opened again");
        let lists = [
            state.participants.keys().collect::<BTreeSet<_>>(),
            state.wait_list.iter().collect(),
            state.redundancy_list.iter().collect(),
        ];
        let listed: BTreeSet<&NodeId> = lists.iter().flatten().copied().collect();
        let count: usize = lists.iter().map(BTreeSet::len).sum();
        assert_eq!(count, listed.len(), "a node is on two lists: {state:#?}");
        let writing: BTreeSet<&NodeId> = state.last_heartbeats.keys().collect();
        assert_eq!(listed, writing, "heartbeats and lists differ");
        for node in &listed {
            let is_new = !before.last_heartbeats.contains_key(*node);
            assert!(
                !is_new || !self.left.contains(*node),
                "{writer} lists {node}, which has left"
            );
            if let Some(&died) = self.died.get(*node) {
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
        if before.complete && state.complete && before.round == state.round {
            let grown = state
                .participants
                .keys()
                .find(|node| !before.participants.contains_key(*node));
            assert_eq!(grown, None, "a complete round grows");
        }
        if state.complete {
            let ranks = self.rounds.entry(state.round).or_default();
            for (node, &rank) in &state.participants {
                let rank = usize::try_from(rank).expect("a rank");
                let known = *ranks.entry(node.clone()).or_insert(rank);
                assert_eq!(known, rank, "{node} changes its rank");
            }
            let all: BTreeSet<usize> = ranks.values().copied().collect();
            assert_eq!(all.len(), ranks.len(), "two nodes have one rank");
        }
    }

    /// An answer is true about a state that was stored.
    pub(super) fn on_joined(&mut self, node: &NodeId, place: &Place) {
        let round = self.rounds.get(&place.round);
        let rank = round.and_then(|ranks| ranks.get(node));
        assert_eq!(rank, Some(&place.rank), "{node} believes {place:?}");
        let before = self
            .joined
            .insert((place.round, place.rank), node.clone())
            .filter(|other| other != node);
        assert_eq!(before, None, "two nodes have rank {}", place.rank);
        let first = self
            .firsts
            .entry(place.round)
            .or_insert_with(|| place.first.clone());
        assert_eq!(*first, place.first, "two nodes are the first");
        assert!(place.rank < place.size, "{place:?}");
    }
}
