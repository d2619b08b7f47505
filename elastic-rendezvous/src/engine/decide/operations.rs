//! The leave table: leaving for good without closing.
//!
//! Not in PyTorch, whose nodes close the rendezvous for all or disappear.

use super::{Action, Context, Decision, Rule};

pub(crate) fn leave(ctx: &Context<'_>) -> Decision {
    let is_listed = ctx.is_participant() || ctx.is_waiting() || ctx.is_redundant();
    if is_listed && ctx.now > ctx.deadline {
        return Decision::new(Rule::L1, Action::ErrorTimeout, "leaving timed out");
    }
    if ctx.is_participant() {
        return Decision::new(
            Rule::L2,
            Action::RemoveFromParticipants,
            "leaving the round",
        );
    }
    if ctx.is_waiting() {
        return Decision::new(
            Rule::L3,
            Action::RemoveFromWaitList,
            "leaving the wait list",
        );
    }
    if ctx.is_redundant() {
        return Decision::new(
            Rule::L4,
            Action::RemoveFromRedundancyList,
            "no longer a spare",
        );
    }
    Decision::new(Rule::L5, Action::Finish, "on no list")
}
