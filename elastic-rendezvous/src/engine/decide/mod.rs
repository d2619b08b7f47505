//! Decides what a node does next, as pure functions from the state to an action and its reason.
//!
//! The tables of `docs/spec/rendezvous.md`, section 5, with the same row names in the same order.

mod amend;
mod join;

use std::time::Duration;

pub(crate) use amend::amend;
pub(crate) use join::join;

use self::Action::*;
use self::Rule::*;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;

/// The next action of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes a heartbeat.
    KeepAlive,
    AddToParticipants,
    /// Takes the lowest free rank of a complete round.
    EnterRound,
    AddToWaitList,
    AddToRedundancyList,
    RemoveFromParticipants,
    RemoveFromWaitList,
    /// Removes the node from the redundancy list, and restarts the join timeout.
    RemoveFromRedundancyList,
    MarkComplete,
    MarkClosed,
    /// Waits until the state changes or time has passed.
    Sync,
    /// The operation has succeeded.
    Finish,
    ErrorClosed,
    ErrorTimeout,
    /// The job ended while this node was a spare; not an error.
    GracefulExit,
}

/// The rows of the tables, by their names in `docs/spec/rendezvous.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip]
pub(crate) enum Rule {
    E1, E2, E3,
    J1, J2, J3, J4, J5, J6, J7, J8, J9, J10, J11, J12, J13, J14, J15,
    H1, H2, H3, H4, H5, H6, H7, H8, H9, H10,
    C1, C2, C3,
    K1, K2, K3,
    L1, L2, L3, L4, L5,
}

/// An action, the table row that selected it, and the reason for log messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) rule: Rule,
    pub(crate) action: Action,
    pub(crate) reason: &'static str,
}

/// The decision of a row.
const fn row(rule: Rule, action: Action, reason: &'static str) -> Decision {
    Decision {
        rule,
        action,
        reason,
    }
}

/// Everything that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) state: &'a RendezvousState,
    pub(crate) me: &'a NodeId,
    pub(crate) settings: &'a RendezvousSettings,
    /// The current time on the monotonic clock.
    pub(crate) now: Duration,
    /// When the operation times out, on the same clock.
    pub(crate) deadline: Duration,
    /// Whether this node has a heartbeat that is at least one interval old.
    pub(crate) heartbeat_due: bool,
    /// Whether a last call began and is over.
    pub(crate) last_call_over: bool,
    /// [`has_every_rank`] of the state.
    pub(crate) has_every_rank: bool,
    /// Whether the free places of the open round are reserved for members of the last round, and this node was
    /// not a member.
    pub(crate) must_yield: bool,
    /// Whether this node enters a complete round.
    pub(crate) entering: Entering,
}

/// Whether a node enters a complete round in which it is not a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entering {
    /// The node does not want to enter, or has waited too long for the permission.
    No,
    /// The node waits for the permission to enter.
    Waits,
    Now,
}

impl Context<'_> {
    fn is_participant(&self) -> bool {
        self.state.participants.contains_key(self.me)
    }

    fn is_waiting(&self) -> bool {
        self.state.wait_list.contains(self.me)
    }

    fn is_redundant(&self) -> bool {
        self.state.redundancy_list.contains(self.me)
    }
}

/// The exit table: leaving the current round before joining the next one.
pub(crate) fn exit(ctx: &Context<'_>) -> Decision {
    if ctx.is_participant() {
        if ctx.now > ctx.deadline {
            return row(E1, ErrorTimeout, "leaving the round timed out");
        }
        return row(
            E2,
            RemoveFromParticipants,
            "leaving the round to join the next one",
        );
    }
    row(E3, Finish, "not a participant")
}

/// The close table.
pub(crate) fn close(ctx: &Context<'_>) -> Decision {
    if ctx.state.closed {
        return row(C1, Finish, "closed");
    }
    if ctx.now > ctx.deadline {
        return row(C2, ErrorTimeout, "closing timed out");
    }
    row(C3, MarkClosed, "closing the rendezvous")
}

/// The keep-alive table.
pub(crate) fn keep_alive(ctx: &Context<'_>) -> Decision {
    if ctx.heartbeat_due {
        if ctx.now > ctx.deadline {
            return row(K1, ErrorTimeout, "writing a heartbeat timed out");
        }
        return row(K2, KeepAlive, "heartbeat due");
    }
    // This row also holds for an evicted node: `Membership::is_evicted` reports it.
    row(K3, Finish, "no heartbeat due")
}

/// The leave table: leaving for good without closing. Not in PyTorch, whose nodes close the rendezvous for all or disappear.
pub(crate) fn leave(ctx: &Context<'_>) -> Decision {
    let is_listed = ctx.is_participant() || ctx.is_waiting() || ctx.is_redundant();
    if is_listed && ctx.now > ctx.deadline {
        return row(L1, ErrorTimeout, "leaving timed out");
    }
    if ctx.is_participant() {
        return row(L2, RemoveFromParticipants, "leaving the round");
    }
    if ctx.is_waiting() {
        return row(L3, RemoveFromWaitList, "leaving the wait list");
    }
    if ctx.is_redundant() {
        return row(L4, RemoveFromRedundancyList, "no longer a spare");
    }
    row(L5, Finish, "on no list")
}

/// Whether the ranks of the participants of a complete round are 0, 1, ... without a gap.
pub(crate) fn has_every_rank(state: &RendezvousState) -> bool {
    let count = state.participants.len();
    let mut is_taken = vec![false; count];
    for &rank in state.participants.values() {
        match usize::try_from(rank)
            .ok()
            .and_then(|rank| is_taken.get_mut(rank))
        {
            Some(taken) if !*taken => *taken = true,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
