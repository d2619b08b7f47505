//! The effects of actions on the state (`docs/spec/rendezvous.md`, section 6).

use std::collections::BTreeSet;

use crate::engine::decide::Action;
use crate::engine::decider::Decider;
use crate::engine::last_round::{Ranks, assign};
use crate::values::goal::Step;
use crate::values::node::NodeId;
use crate::values::report::LostNode;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::Timestamp;

impl Decider {
    /// Applies an action of `node` to the state. Returns the step that is recorded for it.
    pub(crate) fn apply(&mut self, action: Action, node: &NodeId, time: Timestamp) -> Option<Step> {
        let (state, settings) = (&mut self.state, &self.settings);
        let (was_complete, round) = (state.complete, state.round);
        let before = self.last_round.ranks_for(state);
        apply(state, action, node, settings, time, before);
        if !was_complete {
            make_spares(state, settings);
        }
        step_of_action(action, round, !was_complete && state.complete)
    }

    /// Removes dead nodes from the state.
    pub(crate) fn remove_dead(&mut self, dead: &[LostNode]) {
        let dead = dead.iter().map(|dead| &dead.node);
        remove_dead(&mut self.state, dead, &self.settings);
    }
}

/// The step of `action`. `round` is the round before the action, `completes` whether the action completes it.
fn step_of_action(action: Action, round: i64, completes: bool) -> Option<Step> {
    match action {
        _ if completes => Some(Step::MarksComplete { round }),
        Action::MarkClosed => Some(Step::MarksClosed),
        _ => None,
    }
}

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
            // Compares for equality, like PyTorch: nodes that join during a last call do not extend
            // it.
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
