//! The tables of the operations other than a join.

use super::Action::*;
use super::Rule::*;
use super::{Context, Decision, row};

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
