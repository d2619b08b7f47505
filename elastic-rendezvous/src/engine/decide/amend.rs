//! The rows in which a joining node differs from PyTorch's table.
//!
//! Each row selects an action that PyTorch's nodes know too, so both kinds can share a rendezvous.

use super::{Action, Context, Decision, Entering, Rule};

/// Amends a `decision` of the join table. `has_suspects`: a participant may have died long ago.
pub(crate) fn amend(decision: Decision, ctx: &Context<'_>, has_suspects: bool) -> Decision {
    let state = ctx.state;
    let participants = state.participants.len();
    // PyTorch's node goes on the wait list, and the members restart for it.
    if state.complete && ctx.entering != Entering::No {
        match decision.rule {
            Rule::J10 => {
                return Decision::new(
                    Rule::H7,
                    Action::AddToRedundancyList,
                    "waiting as a spare until the running round takes it in",
                );
            }
            Rule::J5 if ctx.entering == Entering::Now => {
                return Decision::new(
                    Rule::H8,
                    Action::EnterRound,
                    "entering the running round, which has a place",
                );
            }
            Rule::J5 if ctx.heartbeat_due => {
                return Decision::new(
                    Rule::H9,
                    Action::KeepAlive,
                    "a spare until the running round takes it in, heartbeat due",
                );
            }
            Rule::J5 => {
                return Decision::new(
                    Rule::H10,
                    Action::Sync,
                    "a spare until the running round takes it in",
                );
            }
            _ => {}
        }
    }
    // PyTorch's spare takes the place of a member that needs longer to stop its workers.
    if ctx.must_yield && matches!(decision.rule, Rule::J5 | Rule::J13) {
        if ctx.heartbeat_due {
            return Decision::new(
                Rule::H5,
                Action::KeepAlive,
                "leaving the free places to members of the last round, heartbeat due",
            );
        }
        return Decision::new(
            Rule::H6,
            Action::Sync,
            "leaving the free places to members of the last round",
        );
    }
    let would_complete = match decision.action {
        Action::MarkComplete => true,
        Action::AddToParticipants => participants + 1 == ctx.settings.max_nodes,
        _ => false,
    };
    // PyTorch compares the clocks of two machines instead.
    if would_complete && has_suspects {
        if ctx.heartbeat_due {
            return Decision::new(
                Rule::H1,
                Action::KeepAlive,
                "waiting until a participant with an old heartbeat writes, own heartbeat due",
            );
        }
        return Decision::new(
            Rule::H2,
            Action::Sync,
            "waiting until a participant with an old heartbeat writes or is dead",
        );
    }
    // PyTorch's node would take rank 2 of 2.
    if decision.action == Action::Finish && !ctx.has_every_rank && ctx.entering == Entering::No {
        return Decision::new(
            Rule::H3,
            Action::RemoveFromParticipants,
            "leaving: the round lost a member before this node saw it complete",
        );
    }
    // PyTorch's node stays on the wait list, so the members restart again and again, although there is no
    // place for it.
    let keeps_waiting = matches!(decision.action, Action::KeepAlive | Action::Sync);
    let is_full = state.complete && participants >= ctx.settings.max_nodes;
    if keeps_waiting && is_full && ctx.is_waiting() {
        return Decision::new(
            Rule::H4,
            Action::AddToRedundancyList,
            "becoming a spare: the round is full",
        );
    }
    decision
}
