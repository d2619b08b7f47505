//! The keep-alive table.

use super::{Action, Context, Decision};

pub(crate) fn keep_alive(ctx: &Context<'_>) -> Decision {
    if ctx.heartbeat_due {
        if ctx.now > ctx.deadline {
            return Decision::new("K1", Action::ErrorTimeout, "writing a heartbeat timed out");
        }
        return Decision::new("K2", Action::KeepAlive, "heartbeat due");
    }
    // Also for an evicted node: `Membership::is_evicted` reports it.
    Decision::new("K3", Action::Finish, "no heartbeat due")
}
