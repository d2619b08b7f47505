//! Invariants beyond the laws, for nodes that write the state themselves, checked at each write, read and join.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::store::Version;
use crate::engine::last_round::{REJOIN_GRACE, Ranks, assign};
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;

/// Something about a node that the world knows.
pub(super) type Known<'w> = &'w dyn Fn(&NodeId) -> bool;

/// Records the history, and panics when an invariant is violated.
#[derive(Debug)]
pub(super) struct Invariants {
    settings: RendezvousSettings,
    /// The nodes of each completed round, by round.
    completed: BTreeMap<i64, Ranks>,
    /// The nodes, by round, that left a complete round, or were dropped by a PyTorch node or by their marks.
    departed: BTreeMap<i64, BTreeSet<NodeId>>,
    /// The nodes that have entered complete rounds.
    entered: BTreeSet<(i64, NodeId)>,
    /// The nodes that have finished their joins, by round and rank.
    joined: BTreeMap<(i64, i64), NodeId>,
    /// The last complete round that each node has read, with the members that it has seen in it.
    seen: BTreeMap<NodeId, (i64, Ranks)>,
    /// When each round was open for the first time.
    opened_at: BTreeMap<i64, Duration>,
    /// The nodes that others have dropped and that are not listed again.
    dropped: BTreeSet<NodeId>,
    /// The last round in which the heartbeat of a node came late: for others it may count as dropped
    /// (docs/spec/rendezvous.md, SPARE 3).
    overdue_in: BTreeMap<NodeId, i64>,
    /// When nodes last looked old by the times in the state, because their clocks are behind.
    looked_old: BTreeMap<NodeId, Duration>,
    /// The times since which such nodes are not listed. After [`REJOIN_GRACE`] they may also count as dropped.
    missing_since: BTreeMap<NodeId, Duration>,
    /// The nodes that remember a round from before the store was emptied, because they have read only later writes
    /// of other nodes. The ranks that they assign are not the ranks of the last round.
    stale: BTreeSet<NodeId>,
}

impl Invariants {
    pub(super) fn new(settings: RendezvousSettings) -> Self {
        Self {
            settings,
            completed: BTreeMap::new(),
            departed: BTreeMap::new(),
            entered: BTreeSet::new(),
            joined: BTreeMap::new(),
            seen: BTreeMap::new(),
            opened_at: BTreeMap::new(),
            dropped: BTreeSet::new(),
            overdue_in: BTreeMap::new(),
            looked_old: BTreeMap::new(),
            missing_since: BTreeMap::new(),
            stale: BTreeSet::new(),
        }
    }

    /// The store is empty, and these nodes remember what it had.
    pub(super) fn on_emptied(&mut self, nodes: impl Iterator<Item = NodeId>) {
        *self = Self::new(self.settings.clone());
        self.stale = nodes.collect();
    }

    /// Notes that the node has restarted.
    pub(super) fn on_new(&mut self, node: &NodeId) {
        self.stale.remove(node);
    }

    /// Checks a write: `writer` has replaced `before` by `after`. `comes_back`: whether a node
    /// runs and has not left for good. `may_be_lost`: whether it was
    /// once without a connection for longer than 2 s.
    pub(super) fn on_write(
        &mut self,
        (writer, is_torch): (&NodeId, bool),
        before: Option<&Version>,
        after: &RendezvousState,
        (comes_back, may_be_lost): (Known<'_>, Known<'_>),
        now: Duration,
    ) {
        let nothing = RendezvousState::default();
        let old = before.map_or(&nothing, |version| &version.state);
        let is_same_round = after.round == old.round;
        let nodes = after.participants.iter();
        let ranks: Ranks = nodes.map(|(node, rank)| (node.clone(), *rank)).collect();
        if old.complete && is_same_round {
            // The laws say which nodes may enter.
            for (node, rank) in &ranks {
                if !old.participants.contains_key(node) {
                    let members = self.completed.entry(after.round).or_default();
                    members.retain(|_, taken| taken != rank);
                    members.insert(node.clone(), *rank);
                    self.joined.remove(&(after.round, *rank));
                    self.entered.insert((after.round, node.clone()));
                }
            }
            for node in old.participants.keys() {
                let has_departed = node == writer || is_torch || may_be_lost(node);
                if !ranks.contains_key(node) && has_departed {
                    let departed = self.departed.entry(after.round).or_default();
                    departed.insert(node.clone());
                }
            }
        } else if after.complete {
            let count = ranks.len();
            let allowed = self.settings.min_nodes..=self.settings.max_nodes;
            assert!(allowed.contains(&count), "completed with {count} nodes");
            let mut in_order: Vec<i64> = ranks.values().copied().collect();
            in_order.sort_unstable();
            assert!(in_order.into_iter().eq(0..count as i64), "{ranks:?}");
            let last = self.seen.get(writer).filter(|_| !is_torch);
            match last.filter(|(round, _)| round + 1 == after.round) {
                _ if self.stale.contains(writer) => {}
                Some((_, last)) => assert_eq!(ranks, assign(ranks.keys(), last)),
                // In the order of the nodes.
                None => assert!(ranks.values().copied().eq(0..count as i64), "{ranks:?}"),
            }
            let before = self.completed.insert(after.round, ranks);
            assert_eq!(before, None, "round {} completed twice", after.round);
        }
        if !after.complete {
            self.opened_at.entry(after.round).or_insert(now);
        }
        let written = before.iter().flat_map(|version| &version.written_at);
        let overdue_after = self.settings.dead_after() / 2;
        let overdue = written.filter(|(_, at)| now.saturating_sub(**at) > overdue_after);
        let overdue = overdue.map(|(node, _)| (node.clone(), old.round));
        self.overdue_in.extend(overdue);
        self.note_missing(old, after, now);
        let unlisted = old.last_heartbeats.keys().filter(|node| *node != writer);
        let unlisted = unlisted.filter(|node| !after.last_heartbeats.contains_key(*node));
        self.dropped.extend(unlisted.cloned());
        self.dropped
            .retain(|node| !after.last_heartbeats.contains_key(node));
        if is_torch {
            return;
        }
        self.check_precedence(writer, old, after, comes_back, now);
        let Some(before) = before else { return };
        for (node, at) in &before.written_at {
            if node != writer && !after.last_heartbeats.contains_key(node) {
                let silence = now - *at;
                assert!(
                    silence > self.settings.dead_after() || may_be_lost(node),
                    "{writer} drops {node}, which wrote {silence:?} ago"
                );
            }
        }
    }

    fn note_missing(&mut self, old: &RendezvousState, after: &RendezvousState, now: Duration) {
        self.missing_since
            .retain(|node, _| !after.last_heartbeats.contains_key(node));
        // Another node may have read the first heartbeats up to an interval apart.
        let interval = self.settings.keep_alive_interval;
        let old_after = self.settings.dead_after() / 2 - interval;
        let newest = old.last_heartbeats.values().max();
        for (node, heartbeat) in &old.last_heartbeats {
            if newest.is_some_and(|newest| newest.since(*heartbeat) > old_after) {
                self.looked_old.insert(node.clone(), now);
            }
            // Other nodes may not have read the later heartbeats.
            let looked_old = self.looked_old.get(node);
            let looked_old = looked_old.is_some_and(|at| now - *at < self.settings.dead_after());
            if looked_old && !after.last_heartbeats.contains_key(node) {
                self.missing_since.insert(node.clone(), now);
            }
        }
    }

    /// Checks that `writer`, if it has just taken a place, has taken none that a member of the last round may claim.
    fn check_precedence(
        &self,
        writer: &NodeId,
        old: &RendezvousState,
        after: &RendezvousState,
        comes_back: Known<'_>,
        now: Duration,
    ) {
        let was_in = old.round == after.round && old.participants.contains_key(writer);
        if was_in || !after.participants.contains_key(writer) || self.stale.contains(writer) {
            return;
        }
        let Some((round, members)) = self.seen.get(writer) else {
            return;
        };
        // A round that was opened and completed by the same write is open since.
        let opened_at = self.opened_at.get(&after.round).copied().unwrap_or(now);
        let is_over = now.saturating_sub(opened_at) >= self.settings.spare_wait;
        if round + 1 != after.round || members.contains_key(writer) || is_over {
            return;
        }
        let claimants: Vec<&NodeId> = members
            .keys()
            .filter(|node| !after.participants.contains_key(*node))
            .filter(|node| comes_back(node))
            .filter(|node| !self.dropped.contains(*node))
            .filter(|node| self.overdue_in.get(*node).is_none_or(|it| it < round))
            .filter(|node| {
                let since = self.missing_since.get(*node);
                since.is_none_or(|since| now.saturating_sub(*since) < REJOIN_GRACE)
            })
            .collect();
        let free = self.settings.max_nodes - after.participants.len();
        assert!(
            claimants.len() <= free,
            "{writer} has taken a place of {claimants:?}, {:?} after round {round}",
            now.saturating_sub(opened_at)
        );
    }

    /// Checks a read: one of our nodes has read `version` at `at`, and `seen` is its copy without dead nodes.
    pub(super) fn on_adopt(
        &mut self,
        reader: &NodeId,
        version: &Version,
        at: Duration,
        seen: &RendezvousState,
        may_be_lost: Known<'_>,
    ) {
        if seen.complete {
            let last = self.seen.entry(reader.clone()).or_default();
            if last.0 != seen.round || last.1.is_empty() {
                *last = (seen.round, Ranks::new());
            }
            for (node, rank) in &seen.participants {
                last.1.entry(node.clone()).or_insert(*rank);
            }
        }
        for (node, written_at) in &version.written_at {
            if !seen.last_heartbeats.contains_key(node) {
                let silence = at - *written_at;
                assert!(
                    silence > self.settings.dead_after() || may_be_lost(node),
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
        if is_torch || self.entered.contains(&(round, node.clone())) {
            return;
        }
        // The node's copy has all members except the members that left before it read the state.
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
}
