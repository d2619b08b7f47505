//! The effects of actions on the state (`docs/spec/rendezvous.md`, section 6).

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::decide::Action;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::Timestamp;

/// Applies `action` of the node `me`; `time` is written as the current time. `before`: the ranks of the last round, if
/// the round of `state` becomes complete.
///
/// `Sync`, `Finish` and the errors change nothing.
pub(crate) fn apply(
    state: &mut RendezvousState,
    action: Action,
    me: &NodeId,
    settings: &RendezvousSettings,
    time: Timestamp,
    before: &Ranks,
) {
    match action {
        Action::KeepAlive => heartbeat(state, me, time),
        Action::AddToParticipants => {
            state.wait_list.remove(me);
            state.participants.insert(me.clone(), 0);
            heartbeat(state, me, time);
            // Equality, as in PyTorch: nodes that join during a last call do not extend it.
            if state.participants.len() == settings.min_nodes {
                state.deadline = Some(time.after(settings.last_call_timeout));
            }
            if state.participants.len() == settings.max_nodes {
                mark_complete(state, before);
            }
        }
        Action::EnterRound => {
            state.redundancy_list.remove(me);
            let taken: BTreeSet<i64> = state.participants.values().copied().collect();
            let rank = (0..).find(|rank| !taken.contains(rank)).unwrap_or_default();
            state.participants.insert(me.clone(), rank);
            heartbeat(state, me, time);
        }
        Action::AddToWaitList => {
            state.redundancy_list.remove(me);
            state.wait_list.insert(me.clone());
            heartbeat(state, me, time);
        }
        Action::AddToRedundancyList => {
            state.wait_list.remove(me);
            state.redundancy_list.insert(me.clone());
            heartbeat(state, me, time);
        }
        Action::RemoveFromParticipants => {
            state.participants.shift_remove(me);
            state.last_heartbeats.shift_remove(me);
            after_departure(state, settings);
        }
        Action::RemoveFromWaitList => {
            state.wait_list.remove(me);
            state.last_heartbeats.shift_remove(me);
        }
        Action::RemoveFromRedundancyList => {
            state.redundancy_list.remove(me);
            state.last_heartbeats.shift_remove(me);
        }
        Action::MarkComplete => mark_complete(state, before),
        Action::MarkClosed => state.closed = true,
        Action::Sync
        | Action::Finish
        | Action::ErrorClosed
        | Action::ErrorTimeout
        | Action::GracefulExit => {}
    }
}

/// Turns the nodes on the wait list into spares if the round is full (*EFFECT 3*).
///
/// In PyTorch they keep waiting, which makes the members restart again and again, because one node is always
/// left over. A PyTorch node that finds itself a spare continues from there.
pub(crate) fn make_spares(state: &mut RendezvousState, settings: &RendezvousSettings) {
    if state.complete && state.participants.len() >= settings.max_nodes {
        state.redundancy_list.append(&mut state.wait_list);
    }
}

/// Removes dead nodes from all lists.
pub(crate) fn remove_dead<'n>(
    state: &mut RendezvousState,
    dead: impl IntoIterator<Item = &'n NodeId>,
    settings: &RendezvousSettings,
) {
    let mut lost_participants = false;
    for node in dead {
        state.last_heartbeats.shift_remove(node);
        state.wait_list.remove(node);
        state.redundancy_list.remove(node);
        lost_participants |= state.participants.shift_remove(node).is_some();
    }
    if lost_participants {
        after_departure(state, settings);
    }
}

/// PyTorch's `_remove_participant_epilogue`.
fn after_departure(state: &mut RendezvousState, settings: &RendezvousSettings) {
    if state.complete {
        if state.participants.is_empty() {
            state.complete = false;
            state.round = state.round.saturating_add(1);
        }
    } else if state.participants.len() < settings.min_nodes {
        state.deadline = None;
    }
}

fn heartbeat(state: &mut RendezvousState, me: &NodeId, time: Timestamp) {
    state.last_heartbeats.insert(me.clone(), time);
}

/// Assigns ranks (*EFFECT 4*); the map keeps the order of arrival.
fn mark_complete(state: &mut RendezvousState, before: &Ranks) {
    state.complete = true;
    state.deadline = None;
    let ranks = assign(state.participants.keys(), before);
    for (node, rank) in &mut state.participants {
        if let Some(assigned) = ranks.get(node) {
            *rank = *assigned;
        }
    }
}

/// Nodes with their ranks.
pub(crate) type Ranks = BTreeMap<NodeId, i64>;

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
    // From the highest: each is below the next one, and leaves room for those before it. A stored rank may be any
    // number.
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
            // It shrinks: the order stays.
            ("d:0,c:1,b:2,a:3", "a,c,d", "d,c,a"),
            ("d:0,c:1,b:2,a:3", "a", "a"),
            // It loses three and gets one.
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
