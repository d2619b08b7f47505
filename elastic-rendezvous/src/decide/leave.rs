//! Leaving for good without closing: what a node does that is told to stop.
//!
//! Not a table of PyTorch's, whose nodes close the rendezvous for everyone or just vanish.

use super::{Action, Context, Decision};

pub(crate) fn leave(ctx: &Context<'_>) -> Decision {
    let is_listed = ctx.is_participant() || ctx.is_waiting() || ctx.is_redundant();
    if is_listed && ctx.now > ctx.deadline {
        return Decision::new("L1", Action::ErrorTimeout, "could not leave in time");
    }
    if ctx.is_participant() {
        return Decision::new("L2", Action::RemoveFromParticipants, "leaves the round");
    }
    if ctx.is_waiting() {
        return Decision::new("L3", Action::RemoveFromWaitList, "leaves the wait list");
    }
    if ctx.is_redundant() {
        return Decision::new(
            "L4",
            Action::RemoveFromRedundancyList,
            "leaves the redundancy list",
        );
    }
    Decision::new("L5", Action::Finish, "on no list")
}
