//! The join table.

use super::Action::*;
use super::Rule::*;
use super::{Context, Decision, row};
use crate::values::settings::ROLLBACK_WINDOW;

pub(crate) fn join(ctx: &Context<'_>) -> Decision {
    let state = ctx.state;
    let settings = ctx.settings;
    let participants = state.participants.len();
    let is_participant = ctx.is_participant();
    let is_waiting = ctx.is_waiting();

    if state.closed {
        if ctx.is_redundant() {
            return row(J1, GracefulExit, "closed, as a spare");
        }
        return row(J2, ErrorClosed, "closed");
    }

    if ctx.is_redundant() {
        if participants == settings.max_nodes {
            if ctx.heartbeat_due {
                return row(J3, KeepAlive, "a spare of a full round, heartbeat due");
            }
            return row(J4, Sync, "a spare of a full round");
        }
        return row(
            J5,
            RemoveFromRedundancyList,
            "joining: the round has a place for this spare",
        );
    }

    if state.complete && is_participant {
        return row(J6, Finish, "a member of the complete round");
    }

    if ctx.now > ctx.deadline {
        if ctx.now <= ctx.deadline.saturating_add(ROLLBACK_WINDOW) {
            if is_participant {
                return row(J7, RemoveFromParticipants, "timed out: leaving the round");
            }
            if is_waiting {
                return row(J8, RemoveFromWaitList, "timed out: leaving the wait list");
            }
        }
        return row(J9, ErrorTimeout, "timed out");
    }

    if state.complete {
        // This node is not a participant: J6.
        if participants < settings.max_nodes && !is_waiting {
            return row(
                J10,
                AddToWaitList,
                "the round is complete and not full: waiting for the next one",
            );
        }
        if participants >= settings.max_nodes && !is_waiting {
            return row(
                J11,
                AddToRedundancyList,
                "becoming a spare: the round is complete and full",
            );
        }
    } else if is_participant {
        let enough = (settings.min_nodes..=settings.max_nodes).contains(&participants);
        if enough && ctx.last_call_over {
            return row(
                J12,
                MarkComplete,
                "completing the round: enough nodes, last call over",
            );
        }
    } else {
        return row(J13, AddToParticipants, "joining the open round");
    }

    if ctx.heartbeat_due {
        return row(J14, KeepAlive, "waiting for other nodes, heartbeat due");
    }
    row(J15, Sync, "waiting for other nodes")
}
