//! A node's record of the last complete round: the ranks of its members, and which of them may still claim a place in
//! the next round (docs/spec/rendezvous.md, section 7.1). Pure.
//!
//! The state itself loses a round when its last member leaves, and PyTorch's nodes would not understand additional
//! fields.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;

/// How long a node that left a round to rejoin may be on no list. It needs one exchange with the store; after
/// this time it has left for good.
pub(crate) const REJOIN_GRACE: Duration = Duration::from_secs(2);

/// Nodes with their ranks.
pub(crate) type Ranks = BTreeMap<NodeId, i64>;

/// The ranks before the first round.
const NO_RANKS: &Ranks = &Ranks::new();

/// The last complete round that this node has seen.
#[derive(Debug, Default)]
pub(crate) struct LastRound {
    /// The number of the round; `None` if this node has seen no complete round, or has missed later
    /// rounds.
    round: Option<i64>,
    /// The members that this node has seen in it.
    ranks: Ranks,
    /// When this node saw that the next one was open.
    ended_at: Option<Duration>,
    /// Members lost after the round was complete.
    lost: BTreeMap<NodeId, Loss>,
}

/// The loss of a member of the last round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub from: Duration,
    /// Whether the only reason is its closed connection, so that it is not lost if it connects again before `from`.
    pub is_of_connection: bool,
}

impl LastRound {
    /// Adopts a state that was read at `now`, without dead nodes. `loss`: whether a member that is not listed counts as
    /// dropped; `None` if nothing tells that it was.
    pub(crate) fn observe(
        &mut self,
        state: &RendezvousState,
        now: Duration,
        loss: impl Fn(&NodeId) -> Option<Loss>,
    ) {
        if state.complete {
            if self.round != Some(state.round) {
                *self = Self {
                    round: Some(state.round),
                    ..Self::default()
                };
            }
            // A node may have dropped the last member too early.
            self.ended_at = None;
            for (node, rank) in &state.participants {
                if !self.ranks.contains_key(node) {
                    self.ranks.insert(node.clone(), *rank);
                }
            }
        } else if self.is_before(state) {
            self.ended_at.get_or_insert(now);
        } else {
            *self = Self::default();
        }
        for node in self.ranks.keys() {
            if state.last_heartbeats.contains_key(node) {
                self.lost.remove(node);
            } else if let Some(loss) = loss(node) {
                let known = self.lost.entry(node.clone()).or_insert(loss);
                if loss.from < known.from {
                    *known = loss;
                }
            } else if self
                .lost
                .get(node)
                .is_some_and(|known| known.is_of_connection && now < known.from)
            {
                self.lost.remove(node);
            }
        }
    }

    /// The ranks to keep when the round of `state` becomes complete.
    pub(crate) fn ranks_for(&self, state: &RendezvousState) -> &Ranks {
        if self.is_before(state) {
            &self.ranks
        } else {
            NO_RANKS
        }
    }

    /// The members that this node has seen.
    pub(crate) fn members(&self) -> impl Iterator<Item = &NodeId> {
        self.ranks.keys()
    }

    /// Whether the node was a member.
    pub(crate) fn has(&self, node: &NodeId) -> bool {
        self.ranks.contains_key(node)
    }

    /// The members that are not back in the open round of `state` and not known to have gone: neither lost, nor among
    /// those that say so (`gone`). A member on another list is about to join.
    pub(crate) fn claimants<'l>(
        &'l self,
        state: &'l RendezvousState,
        gone: &'l BTreeSet<NodeId>,
        now: Duration,
    ) -> impl Iterator<Item = &'l NodeId> {
        self.ranks.keys().filter(move |node| {
            let is_listed = state.last_heartbeats.contains_key(*node);
            let is_lost = self.lost.get(*node).is_some_and(|loss| loss.from <= now);
            let is_gone = is_lost || gone.contains(*node);
            !state.participants.contains_key(*node) && (is_listed || !is_gone)
        })
    }

    /// Returns the time until which members have precedence over other nodes in the open round of `state`; `None` if
    /// they have none.
    pub(crate) fn precedence_until(
        &self,
        state: &RendezvousState,
        settings: &RendezvousSettings,
    ) -> Option<Duration> {
        let ended_at = self.ended_at.filter(|_| self.is_before(state))?;
        Some(ended_at.saturating_add(settings.spare_wait))
    }

    /// When members next lose their precedence, or one its claim.
    pub(crate) fn next_change_at(
        &self,
        state: &RendezvousState,
        settings: &RendezvousSettings,
        now: Duration,
    ) -> Option<Duration> {
        let until = self.precedence_until(state, settings)?;
        let lost_from = self.lost.values().map(|loss| loss.from);
        lost_from.chain([until]).filter(|at| *at > now).min()
    }

    /// Whether `me`, which was no member, has to leave the free places of an open round to `claimants` members.
    pub(crate) fn must_yield(
        &self,
        me: &NodeId,
        state: &RendezvousState,
        settings: &RendezvousSettings,
        now: Duration,
        claimants: impl FnOnce() -> usize,
    ) -> bool {
        let has_precedence = self
            .precedence_until(state, settings)
            .is_some_and(|until| now < until);
        if !has_precedence || self.has(me) {
            return false;
        }
        let free = settings.max_nodes.saturating_sub(state.participants.len());
        free <= claimants()
    }

    /// Whether this is the round before the open or just completing one of `state`.
    fn is_before(&self, state: &RendezvousState) -> bool {
        !state.complete && self.round.and_then(|round| round.checked_add(1)) == Some(state.round)
    }
}

/// Assigns 0, 1, ... to `nodes`, which had the ranks `before` in the last round, as far as they were in it.
///
/// Nodes that stay keep their order, and their rank unless it is too high now. New nodes get the other ranks in the
/// order of nodes.
pub(crate) fn assign<'n>(nodes: impl IntoIterator<Item = &'n NodeId>, before: &Ranks) -> Ranks {
    let (mut staying, mut new) = (Vec::new(), Vec::new());
    for node in nodes {
        match before.get(node) {
            Some(rank) => staying.push((*rank, node)),
            None => new.push(node),
        }
    }
    staying.sort_unstable();
    new.sort_unstable();
    let count = staying.len() + new.len();
    let mut is_taken = vec![false; count];
    let mut ranks = Ranks::new();
    // Assigned from the highest rank down: each rank is below the next rank, and leaves room for the earlier ranks. A
    // stored rank may be any number.
    let mut limit = count;
    for (position, (rank, node)) in staying.into_iter().enumerate().rev() {
        let wanted = usize::try_from(rank).unwrap_or(0);
        limit = wanted.min(limit - 1).max(position);
        is_taken[limit] = true;
        ranks.insert(node.clone(), number(limit));
    }
    let free = (0..count).filter(|rank| !is_taken[*rank]);
    for (rank, node) in free.zip(new) {
        ranks.insert(node.clone(), number(rank));
    }
    ranks
}

fn number(rank: usize) -> i64 {
    i64::try_from(rank).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::timestamp::Timestamp;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 1, 0)
    }

    fn nodes(names: &str) -> impl Iterator<Item = NodeId> {
        names.split_terminator(',').map(node)
    }

    fn state(round: i64, complete: bool, participants: &str, waiting: &str) -> RendezvousState {
        let mut state = RendezvousState {
            round,
            complete,
            ..RendezvousState::default()
        };
        state.participants = nodes(participants).zip(0..).collect();
        state.wait_list = nodes(waiting).collect();
        let listed = nodes(participants).chain(nodes(waiting));
        state.last_heartbeats = listed.map(|it| (it, Timestamp::MIN)).collect();
        state
    }

    /// Round 3 of a, b and c, which has ended after 100 s.
    fn ended() -> LastRound {
        let mut last = LastRound::default();
        last.observe(&state(3, true, "a,b,c", ""), 90 * SECOND, |_| None);
        last.observe(&state(4, false, "", "a"), 100 * SECOND, |_| None);
        last
    }

    const fn loss(from: u64, is_of_connection: bool) -> Loss {
        Loss {
            from: Duration::from_secs(from),
            is_of_connection,
        }
    }

    /// Whether a spare yields after this many seconds, of three nodes.
    fn yields(last: &LastRound, state: &RendezvousState, at: u32, gone: &str) -> bool {
        let settings = RendezvousSettings::for_test(2, 3);
        let gone = nodes(gone).collect();
        last.must_yield(&node("spare"), state, &settings, at * SECOND, || {
            last.claimants(state, &gone, at * SECOND).count()
        })
    }

    /// docs/spec/rendezvous.md, SPARE 1 and 2.
    #[test]
    fn a_spare_yields_to_members_that_may_come_back() {
        let last = ended();
        for (participants, waiting, gone, expected) in [
            ("", "", "", true),
            ("a,b", "", "", true),
            // c has gone: there is a place that no member claims.
            ("a,b", "", "c", false),
            ("a", "", "c", false),
            ("a,x", "", "c", true),
            // The node has announced this before it returned.
            ("a,b", "c", "c", true),
        ] {
            let state = state(4, false, participants, waiting);
            assert_eq!(
                yields(&last, &state, 101, gone),
                expected,
                "in={participants} wait={waiting} gone={gone}"
            );
        }
    }

    /// docs/spec/rendezvous.md, SPARE 1.
    #[test]
    fn members_have_precedence_for_the_time_of_the_setting() {
        let (last, state) = (ended(), state(4, false, "a,b", ""));
        assert!(yields(&last, &state, 114, ""));
        assert!(!yields(&last, &state, 115, ""));
        // Seen again later, the round has still ended at the same time.
        let mut last = last;
        last.observe(&state, 110 * SECOND, |_| None);
        assert!(!yields(&last, &state, 115, ""));
    }

    /// docs/spec/rendezvous.md, SPARE 2.
    #[test]
    fn a_lost_member_has_no_claim_until_it_is_listed_again() {
        let mut last = ended();
        let open = state(4, false, "a,b", "");
        last.observe(&open, 101 * SECOND, |it| {
            (*it == node("c")).then_some(loss(103, false))
        });
        for (at, expected) in [(102, true), (103, false)] {
            assert_eq!(yields(&last, &open, at, ""), expected, "at {at} s");
        }
        let settings = RendezvousSettings::for_test(2, 3);
        let changes = |at| last.next_change_at(&open, &settings, at * SECOND);
        assert_eq!(changes(102), Some(103 * SECOND));
        assert_eq!(changes(103), Some(115 * SECOND));
        let back = state(4, false, "a,b", "c");
        last.observe(&back, 104 * SECOND, |_| Some(loss(104, false)));
        assert!(yields(&last, &back, 104, ""));
    }

    /// docs/spec/rendezvous.md, SPARE 3: it was away for less than the time after which it counts as lost.
    #[test]
    fn a_member_that_connects_again_in_time_has_its_claim() {
        let open = state(4, false, "a,b", "");
        for (connects_at, is_of_connection, expected) in
            [(102, true, true), (103, true, false), (102, false, false)]
        {
            let mut last = ended();
            let is_away = |_: &NodeId| Some(loss(103, is_of_connection));
            last.observe(&open, 101 * SECOND, is_away);
            last.observe(&open, connects_at * SECOND, |_| None);
            assert_eq!(yields(&last, &open, 104, ""), expected, "{connects_at} s");
        }
    }

    /// docs/spec/rendezvous.md, SPARE 4.
    #[test]
    fn members_and_nodes_that_saw_no_round_do_not_yield() {
        let settings = RendezvousSettings::for_test(2, 3);
        let open = state(4, false, "b", "");
        assert!(!ended().must_yield(&node("a"), &open, &settings, 101 * SECOND, || 3));
        assert!(!yields(&LastRound::default(), &open, 101, ""));
        // Round 4 was missed.
        let mut last = ended();
        let later = state(5, false, "b", "");
        last.observe(&later, 101 * SECOND, |_| None);
        assert!(!yields(&last, &later, 101, ""));
        assert!(last.ranks_for(&later).is_empty());
    }

    #[test]
    fn ranks_are_those_that_were_first_seen() {
        let mut last = LastRound::default();
        last.observe(&state(3, true, "c,a,b", ""), SECOND, |_| None);
        // a has left the complete round, and counts.
        last.observe(&state(3, true, "c,b", "a"), SECOND, |_| None);
        let ranks = last.ranks_for(&state(4, false, "", ""));
        let expected = [("a", 1), ("b", 2), ("c", 0)].map(|(name, rank)| (node(name), rank));
        assert_eq!(ranks, &Ranks::from(expected));
        assert!(last.ranks_for(&state(3, true, "c,b", "a")).is_empty());
    }

    /// Returns the names of the nodes `now` in the order of their ranks; `before` has earlier ranks, for example `b:0,a:1`.
    fn assigned(before: &str, now: &str) -> String {
        let node = |name: &str| NodeId::new(name, 1, 0);
        let before = before.split_terminator(',').map(|it| {
            let (name, rank) = it.split_once(':').expect("a rank");
            (node(name), rank.parse().expect("a number"))
        });
        let now: Vec<NodeId> = now.split_terminator(',').map(node).collect();
        let ranks = assign(&now, &before.collect());
        let mut nodes: Vec<(i64, &str)> = ranks
            .iter()
            .map(|(node, rank)| (*rank, &*node.addr))
            .collect();
        nodes.sort_unstable();
        assert!(
            nodes.iter().map(|it| it.0).eq(0..now.len() as i64),
            "{nodes:?}"
        );
        nodes.iter().map(|it| it.1).collect::<Vec<_>>().join(",")
    }

    /// docs/spec/rendezvous.md, EFFECT 4.
    #[test]
    fn nodes_that_stay_keep_their_ranks_and_new_ones_fill_the_gaps() {
        for (before, now, expected) in [
            ("", "", ""),
            ("", "c,a,b", "a,b,c"),
            ("c:0,a:1,b:2", "a,b,c", "c,a,b"),
            // A spare replaces a member.
            ("c:0,b:1,d:2", "c,d,a", "c,a,d"),
            ("c:0,b:1,d:2", "b,d,a", "a,b,d"),
            ("c:0,b:1,d:2", "z,y,b", "y,b,z"),
            // The round grows.
            ("c:0,b:1", "a,b,c,d", "c,b,a,d"),
            // The round shrinks: the order stays.
            ("d:0,c:1,b:2,a:3", "a,c,d", "d,c,a"),
            ("d:0,c:1,b:2,a:3", "a", "a"),
            // The round loses three nodes and gets one.
            (
                "a:0,b:1,c:2,d:3,e:4,f:5,g:6,h:7",
                "a,b,d,g,h,x",
                "a,b,x,d,g,h",
            ),
            // A foreign node may have written such ranks.
            ("a:5,b:5,c:5", "a,b,c", "a,b,c"),
            ("a:-1,b:0,c:9223372036854775807", "a,b,c", "a,b,c"),
        ] {
            assert_eq!(assigned(before, now), expected, "{before} -> {now}");
        }
    }

    #[test]
    fn every_node_whose_rank_is_still_free_keeps_it_if_none_is_lost() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let count = random.i64(1..20);
            let node = |number: i64| NodeId::new("n", number, 0);
            let before: Ranks = (0..count).map(|it| (node(it), it)).collect();
            // Some are replaced, and some are added.
            let first_new = random.i64(count..2 * count);
            let nodes: Vec<NodeId> = (0..first_new)
                .map(|it| {
                    if random.bool() {
                        node(it)
                    } else {
                        node(1000 + it)
                    }
                })
                .collect();
            let ranks = assign(&nodes, &before);
            let staying = nodes.iter().filter_map(|it| before.get_key_value(it));
            for (node, rank) in staying {
                assert_eq!(ranks.get(node), Some(rank));
            }
        }
    }
}
