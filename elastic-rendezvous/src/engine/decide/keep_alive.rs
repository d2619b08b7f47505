//! The keep-alive table.

use super::{Action, Context, Decision, Rule};

pub(crate) fn keep_alive(ctx: &Context<'_>) -> Decision {
    if ctx.heartbeat_due {
        if ctx.now > ctx.deadline {
            return Decision::new(
                Rule::K1,
                Action::ErrorTimeout,
                "writing a heartbeat timed out",
            );
        }
        return Decision::new(Rule::K2, Action::KeepAlive, "heartbeat due");
    }
    // Also for an evicted node: `Membership::is_evicted` reports it.
    Decision::new(Rule::K3, Action::Finish, "no heartbeat due")
}
