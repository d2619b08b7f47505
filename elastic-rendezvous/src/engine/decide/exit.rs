//! The exit table: leaving the current round before joining the next one.

use super::{Action, Context, Decision, Rule};

pub(crate) fn exit(ctx: &Context<'_>) -> Decision {
    if ctx.is_participant() {
        if ctx.now > ctx.deadline {
            return Decision::new(
                Rule::E1,
                Action::ErrorTimeout,
                "leaving the round timed out",
            );
        }
        return Decision::new(
            Rule::E2,
            Action::RemoveFromParticipants,
            "leaving the round to join the next one",
        );
    }
    Decision::new(Rule::E3, Action::Finish, "not a participant")
}
