//! Closing the rendezvous for good.

use super::{Action, Context, Decision};

pub(crate) fn close(ctx: &Context<'_>) -> Decision {
    if ctx.state.closed {
        return Decision::new("C1", Action::Finish, "closed");
    }
    if ctx.now > ctx.deadline {
        return Decision::new(
            "C2",
            Action::ErrorTimeout,
            "could not close the rendezvous in time",
        );
    }
    Decision::new("C3", Action::MarkClosed, "not closed yet")
}
