//! What an action changes in the state.
//!
//! Decides nothing (`decide`). Knows the time only as what is to be written.

use crate::decide::Action;
use crate::node::NodeId;
use crate::settings::RendezvousSettings;
use crate::state::RendezvousState;
use crate::timestamp::Timestamp;

/// Carries out `action` for the node `me`; `time` is what is written as the present.
///
/// Actions that change nothing (`Sync`, `Finish` and the errors) do nothing here.
pub(crate) fn apply(
    state: &mut RendezvousState,
    action: Action,
    me: &NodeId,
    settings: &RendezvousSettings,
    time: Timestamp,
) {
    match action {
        Action::KeepAlive => heartbeat(state, me, time),
        Action::AddToParticipants => {
            state.wait_list.remove(me);
            state.participants.insert(me.clone(), 0);
            heartbeat(state, me, time);
            // Equality, as in PyTorch: nodes that come during a last call do not prolong it.
            if state.participants.len() == settings.min_nodes {
                state.deadline = Some(time.after(settings.last_call_timeout));
            }
            if state.participants.len() == settings.max_nodes {
                mark_complete(state);
            }
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
        Action::MarkComplete => mark_complete(state),
        Action::MarkClosed => state.closed = true,
        Action::Sync
        | Action::Finish
        | Action::ErrorClosed
        | Action::ErrorTimeout
        | Action::GracefulExit => {}
    }
}

/// When the round is full, makes spares of those who wait for the next one: there is no place for them.
///
/// In PyTorch they go on waiting, and for as long as somebody waits the members restart, again and
/// again, as one always stays behind. A spare is where every other node comes to that finds the round
/// full; its owner goes on from there, also when it is PyTorch's.
pub(crate) fn make_spares(state: &mut RendezvousState, settings: &RendezvousSettings) {
    if state.complete && state.participants.len() >= settings.max_nodes {
        state.redundancy_list.append(&mut state.wait_list);
    }
}

/// Removes nodes that are taken for dead, from everywhere.
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

/// The ranks follow the order of the nodes; the map keeps the order of arrival.
fn mark_complete(state: &mut RendezvousState) {
    state.complete = true;
    state.deadline = None;
    let mut order: Vec<usize> = (0..state.participants.len()).collect();
    order.sort_by(|&a, &b| {
        let node = |index| state.participants.get_index(index).map(|(node, _)| node);
        node(a).cmp(&node(b))
    });
    for (rank, index) in (0_i64..).zip(order) {
        if let Some((_, its_rank)) = state.participants.get_index_mut(index) {
            *its_rank = rank;
        }
    }
}
