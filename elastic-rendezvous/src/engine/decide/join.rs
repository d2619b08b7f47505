//! The join table.

use super::{Action, Context, Decision, Rule};
use crate::values::settings::ROLLBACK_WINDOW;

pub(crate) fn join(ctx: &Context<'_>) -> Decision {
    let state = ctx.state;
    let settings = ctx.settings;
    let participants = state.participants.len();
    let is_participant = ctx.is_participant();
    let is_waiting = ctx.is_waiting();

    if state.closed {
        if ctx.is_redundant() {
            return Decision::new(Rule::J1, Action::GracefulExit, "closed, as a spare");
        }
        return Decision::new(Rule::J2, Action::ErrorClosed, "closed");
    }

    if ctx.is_redundant() {
        if participants == settings.max_nodes {
            if ctx.heartbeat_due {
                return Decision::new(
                    Rule::J3,
                    Action::KeepAlive,
                    "a spare of a full round, heartbeat due",
                );
            }
            return Decision::new(Rule::J4, Action::Sync, "a spare of a full round");
        }
        return Decision::new(
            Rule::J5,
            Action::RemoveFromRedundancyList,
            "joining: the round has a place for this spare",
        );
    }

    if state.complete && is_participant {
        return Decision::new(Rule::J6, Action::Finish, "a member of the complete round");
    }

    if ctx.now > ctx.deadline {
        if ctx.now <= ctx.deadline.saturating_add(ROLLBACK_WINDOW) {
            if is_participant {
                return Decision::new(
                    Rule::J7,
                    Action::RemoveFromParticipants,
                    "timed out: leaving the round",
                );
            }
            if is_waiting {
                return Decision::new(
                    Rule::J8,
                    Action::RemoveFromWaitList,
                    "timed out: leaving the wait list",
                );
            }
        }
        return Decision::new(Rule::J9, Action::ErrorTimeout, "timed out");
    }

    if state.complete {
        // This node is no participant: J6.
        if participants < settings.max_nodes && !is_waiting {
            return Decision::new(
                Rule::J10,
                Action::AddToWaitList,
                "the round is complete and not full: waiting for the next one",
            );
        }
        if participants >= settings.max_nodes && !is_waiting {
            return Decision::new(
                Rule::J11,
                Action::AddToRedundancyList,
                "becoming a spare: the round is complete and full",
            );
        }
    } else if is_participant {
        let enough = (settings.min_nodes..=settings.max_nodes).contains(&participants);
        if enough && ctx.last_call_over {
            return Decision::new(
                Rule::J12,
                Action::MarkComplete,
                "completing the round: enough nodes, last call over",
            );
        }
    } else {
        return Decision::new(
            Rule::J13,
            Action::AddToParticipants,
            "joining the open round",
        );
    }

    if ctx.heartbeat_due {
        return Decision::new(
            Rule::J14,
            Action::KeepAlive,
            "waiting for other nodes, heartbeat due",
        );
    }
    Decision::new(Rule::J15, Action::Sync, "waiting for other nodes")
}
