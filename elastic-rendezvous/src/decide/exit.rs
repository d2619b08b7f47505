//! The exit table: leaving the current round before joining the next one.

use super::{Action, Context, Decision};

pub(crate) fn exit(ctx: &Context<'_>) -> Decision {
    if ctx.is_participant() {
        if ctx.now > ctx.deadline {
            return Decision::new("E1", Action::ErrorTimeout, "leaving the round timed out");
        }
        return Decision::new(
            "E2",
            Action::RemoveFromParticipants,
            "leaving the round to join the next one",
        );
    }
    Decision::new("E3", Action::Finish, "not a participant")
}
