//! A call to a peer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{CallSite, NotSent, Outcome, RpcError};
use crate::milliseconds::milliseconds;

/// A call that is about to be made. `P` is the shell's means to complete it.
pub(crate) struct NewCall<'a, P> {
    pub(crate) promise: P,
    pub(crate) function: &'a str,
    pub(crate) started_at: Instant,
    /// `None` for no limit.
    pub(crate) timeout: Option<Duration>,
    /// When it expires, in milliseconds of the caller's clock, rounded up.
    pub(crate) deadline_ms: Option<u64>,
    /// Whether a test sends the request more than once: that one copy was not sent does not mean that none was.
    pub(crate) is_repeated: bool,
}

/// A call without an answer.
pub(crate) struct PendingCall<P> {
    pub(crate) promise: P,
    pub(crate) function: Arc<str>,
    pub(crate) started_at: Instant,
    /// `None` for no limit.
    pub(crate) timeout: Option<Duration>,
    pub(super) is_repeated: bool,
}

impl<P> PendingCall<P> {
    /// The error of a call whose connection ended.
    pub(super) fn lost(
        &self,
        call: Box<CallSite>,
        outcome: Outcome,
        cause: &Arc<io::Error>,
    ) -> RpcError {
        let cause = Arc::clone(cause);
        match outcome {
            Outcome::NotExecuted => RpcError::NotSent {
                call,
                cause: NotSent::ConnectionLost(cause),
            },
            _ => RpcError::ConnectionLost { call, cause },
        }
    }
}

/// The milliseconds that a request tells its callee: rounded up, so that no time becomes 0, which means no limit.
pub(super) fn budget_ms(timeout: Option<Duration>) -> u32 {
    timeout.map_or(0, |timeout| {
        u32::try_from(milliseconds(timeout))
            .unwrap_or(u32::MAX)
            .max(1)
    })
}
