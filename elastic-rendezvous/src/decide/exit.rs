//! Leaving the present round, before joining the next one.

use super::{Action, Context, Decision};

pub(crate) fn exit(ctx: &Context<'_>) -> Decision {
    if ctx.is_participant() {
        if ctx.now > ctx.deadline {
            return Decision::new(
                "E1",
                Action::ErrorTimeout,
                "a participant that could not leave in time",
            );
        }
        return Decision::new(
            "E2",
            Action::RemoveFromParticipants,
            "a participant, which must leave before it can join again",
        );
    }
    Decision::new("E3", Action::Finish, "not a participant")
}
