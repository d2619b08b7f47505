//! The close table.

use super::{Action, Context, Decision, Rule};

pub(crate) fn close(ctx: &Context<'_>) -> Decision {
    if ctx.state.closed {
        return Decision::new(Rule::C1, Action::Finish, "closed");
    }
    if ctx.now > ctx.deadline {
        return Decision::new(Rule::C2, Action::ErrorTimeout, "closing timed out");
    }
    Decision::new(Rule::C3, Action::MarkClosed, "closing the rendezvous")
}
