//! Joining the next round.

use super::{Action, Context, Decision};
use crate::settings::ROLLBACK_WINDOW;

pub(crate) fn join(ctx: &Context<'_>) -> Decision {
    let state = ctx.state;
    let settings = ctx.settings;
    let participants = state.participants.len();
    let is_participant = ctx.is_participant();
    let is_waiting = ctx.is_waiting();

    if state.closed {
        if ctx.is_redundant() {
            return Decision::new(
                "J1",
                Action::GracefulExit,
                "closed while this node was a spare",
            );
        }
        return Decision::new("J2", Action::ErrorClosed, "closed");
    }

    if ctx.is_redundant() {
        if participants == settings.max_nodes {
            if ctx.heartbeat_due {
                return Decision::new(
                    "J3",
                    Action::KeepAlive,
                    "a spare of a full round whose sign of life is due",
                );
            }
            return Decision::new("J4", Action::Sync, "a spare of a full round");
        }
        return Decision::new(
            "J5",
            Action::RemoveFromRedundancyList,
            "a spare of a round that has room again",
        );
    }

    if state.complete && is_participant {
        return Decision::new(
            "J6",
            Action::Finish,
            "the round is complete, with this node",
        );
    }

    if ctx.now > ctx.deadline {
        if ctx.now <= ctx.deadline.saturating_add(ROLLBACK_WINDOW) {
            if is_participant {
                return Decision::new(
                    "J7",
                    Action::RemoveFromParticipants,
                    "out of time: takes back its participation",
                );
            }
            if is_waiting {
                return Decision::new(
                    "J8",
                    Action::RemoveFromWaitList,
                    "out of time: takes back its place on the wait list",
                );
            }
        }
        return Decision::new("J9", Action::ErrorTimeout, "out of time");
    }

    if state.complete {
        // This node is no participant: J6.
        if participants < settings.max_nodes && !is_waiting {
            return Decision::new(
                "J10",
                Action::AddToWaitList,
                "the round is complete and has room: waits for the next",
            );
        }
        if participants >= settings.max_nodes && !is_waiting {
            return Decision::new(
                "J11",
                Action::AddToRedundancyList,
                "the round is complete and full: becomes a spare",
            );
        }
    } else if is_participant {
        let enough = (settings.min_nodes..=settings.max_nodes).contains(&participants);
        if enough && ctx.last_call_over {
            return Decision::new(
                "J12",
                Action::MarkComplete,
                "enough nodes are there and the last call is over",
            );
        }
    } else {
        return Decision::new(
            "J13",
            Action::AddToParticipants,
            "the round is open and this node is not in it",
        );
    }

    if ctx.heartbeat_due {
        return Decision::new(
            "J14",
            Action::KeepAlive,
            "waits, and its sign of life is due",
        );
    }
    Decision::new("J15", Action::Sync, "waits for the others")
}
