//! A sign of life, when it is time for one.

use super::{Action, Context, Decision};

pub(crate) fn keep_alive(ctx: &Context<'_>) -> Decision {
    if ctx.heartbeat_due {
        if ctx.now > ctx.deadline {
            return Decision::new(
                "K1",
                Action::ErrorTimeout,
                "could not give a sign of life in time",
            );
        }
        return Decision::new("K2", Action::KeepAlive, "a sign of life is due");
    }
    // Also for a node that was evicted: the handler tells its owner (`Membership::evicted`).
    Decision::new("K3", Action::Finish, "no sign of life is due")
}
