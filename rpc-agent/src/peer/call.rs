//! A call to a peer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::milliseconds;

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

/// The milliseconds that a request tells its callee: rounded up, so that no time becomes 0, which means no limit.
pub(super) fn budget_ms(timeout: Option<Duration>) -> u32 {
    timeout.map_or(0, |timeout| {
        u32::try_from(milliseconds(timeout))
            .unwrap_or(u32::MAX)
            .max(1)
    })
}
