//! The close table.

use super::{Action, Context, Decision};

pub(crate) fn close(ctx: &Context<'_>) -> Decision {
    if ctx.state.closed {
        return Decision::new("C1", Action::Finish, "closed");
    }
    if ctx.now > ctx.deadline {
        return Decision::new("C2", Action::ErrorTimeout, "closing timed out");
    }
    Decision::new("C3", Action::MarkClosed, "closing the rendezvous")
}
