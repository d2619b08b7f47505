//! The rows in which a joining node differs from PyTorch's table.
//!
//! Each row selects an action that PyTorch's nodes know too, so both kinds can share a rendezvous.

use super::Action::*;
use super::Rule::*;
use super::{Context, Decision, Entering, Rule, row};

/// Amends a `decision` of the join table. `has_suspects`: a participant may have died long ago.
pub(crate) fn amend(decision: Decision, ctx: &Context<'_>, has_suspects: bool) -> Decision {
    let state = ctx.state;
    let participants = state.participants.len();
    if let Some(decision) = enter(decision.rule, ctx) {
        return decision;
    }
    // PyTorch's spare takes the place of a member that needs longer to stop its workers.
    if ctx.must_yield && matches!(decision.rule, J5 | J13) {
        if ctx.heartbeat_due {
            return row(
                H5,
                KeepAlive,
                "leaving the free places to members of the last round, heartbeat due",
            );
        }
        return row(
            H6,
            Sync,
            "leaving the free places to members of the last round",
        );
    }
    let would_complete = match decision.action {
        MarkComplete => true,
        AddToParticipants => participants + 1 == ctx.settings.max_nodes,
        _ => false,
    };
    // PyTorch compares the clocks of two machines instead.
    if would_complete && has_suspects {
        if ctx.heartbeat_due {
            return row(
                H1,
                KeepAlive,
                "waiting until a participant with an old heartbeat writes, own heartbeat due",
            );
        }
        return row(
            H2,
            Sync,
            "waiting until a participant with an old heartbeat writes or is dead",
        );
    }
    // PyTorch's node would take rank 2 of 2.
    if decision.action == Finish && !ctx.has_every_rank && ctx.entering == Entering::No {
        return row(
            H3,
            RemoveFromParticipants,
            "leaving: the round lost a member before this node saw it complete",
        );
    }
    // PyTorch's node stays on the wait list, so the members restart again and again, although there is no
    // place for it.
    let keeps_waiting = matches!(decision.action, KeepAlive | Sync);
    let is_full = state.complete && participants >= ctx.settings.max_nodes;
    if keeps_waiting && is_full && ctx.is_waiting() {
        return row(
            H4,
            AddToRedundancyList,
            "becoming a spare: the round is full",
        );
    }
    decision
}

/// Returns the decision of a node that enters a running round. PyTorch's node joins the wait list instead, and the
/// members restart for it.
fn enter(rule: Rule, ctx: &Context<'_>) -> Option<Decision> {
    if !ctx.state.complete || ctx.entering == Entering::No {
        return None;
    }
    match rule {
        J10 => Some(row(
            H7,
            AddToRedundancyList,
            "waiting as a spare until the running round takes it in",
        )),
        J5 if ctx.entering == Entering::Now => Some(row(
            H8,
            EnterRound,
            "entering the running round, which has a place",
        )),
        J5 if ctx.heartbeat_due => Some(row(
            H9,
            KeepAlive,
            "a spare until the running round takes it in, heartbeat due",
        )),
        J5 => Some(row(
            H10,
            Sync,
            "a spare until the running round takes it in",
        )),
        _ => None,
    }
}
