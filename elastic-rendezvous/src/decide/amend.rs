//! Where a joining node of ours does otherwise than PyTorch's table says.
//!
//! Each row is a choice that PyTorch's nodes could make too: to wait a little, to leave, to be a spare.
//! So both kinds may be in one rendezvous.

use super::{Action, Context, Decision};

/// What a node does instead of `decision`, which is what the table of joining says; the decision
/// itself when no row applies. `has_suspects`: some participant may be long dead.
pub(crate) fn amend(decision: Decision, ctx: &Context<'_>, has_suspects: bool) -> Decision {
    let state = ctx.state;
    let participants = state.participants.len();
    let would_complete = match decision.action {
        Action::MarkComplete => true,
        Action::AddToParticipants => participants + 1 == ctx.settings.max_nodes,
        _ => false,
    };
    // PyTorch compares the clocks of two machines instead.
    if would_complete && has_suspects {
        if ctx.heartbeat_due {
            return Decision::new(
                "H1",
                Action::KeepAlive,
                "waits for a participant with an old time, and its sign of life is due",
            );
        }
        return Decision::new(
            "H2",
            Action::Sync,
            "a participant has an old time: waits to see whether it lives",
        );
    }
    // PyTorch's node would take rank 2 of 2.
    if decision.action == Action::Finish && !ctx.has_every_rank() {
        return Decision::new(
            "H3",
            Action::RemoveFromParticipants,
            "the round has lost a member before this node has seen it: leaves it",
        );
    }
    // PyTorch's node stays on the wait list, for which the members restart again and again, although
    // there is no place for it.
    let goes_on_waiting = matches!(decision.action, Action::KeepAlive | Action::Sync);
    let is_full = state.complete && participants >= ctx.settings.max_nodes;
    if goes_on_waiting && is_full && ctx.is_waiting() {
        return Decision::new(
            "H4",
            Action::AddToRedundancyList,
            "waited for a round that is full: becomes a spare",
        );
    }
    decision
}
