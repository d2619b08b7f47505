//! A call to a peer, and the error of a call that the peer reports.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::milliseconds;
use crate::error::{CallMessage, CallSite, Outcome, RpcError};
use crate::wire::Failure;

/// A call that is about to be made. `P` is the shell's means to complete it.
pub(crate) struct NewCall<'a, P> {
    pub(crate) promise: P,
    pub(crate) function: &'a str,
    pub(crate) started_at: Instant,
    /// `None` for no limit.
    pub(crate) timeout: Option<Duration>,
    /// The time when the call expires, in milliseconds of the caller's clock, rounded up.
    pub(crate) deadline_ms: Option<u64>,
    /// Whether a test sends the request more than once: that one copy was not sent does not mean that none was.
    pub(crate) is_repeated: bool,
}

/// A call without an answer.
pub(crate) struct PendingCall<P> {
    pub(crate) promise: P,
    pub(crate) function: Arc<str>,
    /// `None` for no limit.
    pub(crate) timeout: Option<Duration>,
    pub(super) is_repeated: bool,
}

/// The milliseconds that a request sends to its callee: rounded up, so that no time becomes 0, which means no limit.
pub(super) fn budget_ms(timeout: Option<Duration>) -> u32 {
    timeout.map_or(0, |timeout| {
        u32::try_from(milliseconds(timeout))
            .unwrap_or(u32::MAX)
            .max(1)
    })
}

impl Failure {
    /// The error of the call that got this answer. `message_bytes_max` is the limit of the pair.
    pub(super) fn into_error<P>(
        self,
        call: Box<CallSite>,
        pending: &PendingCall<P>,
        message_bytes_max: u64,
    ) -> RpcError {
        match self {
            Self::Handler(message) => RpcError::Remote {
                call,
                message,
                panicked: false,
            },
            Self::Panicked(message) => RpcError::Remote {
                call,
                message,
                panicked: true,
            },
            Self::NoSuchFunction => RpcError::NoSuchFunction { call },
            Self::Rejected(reason) => RpcError::Rejected { call, reason },
            Self::AnswerTooLarge { bytes } => RpcError::TooLarge {
                call,
                message: CallMessage::Answer,
                bytes,
                bytes_max: message_bytes_max,
            },
            Self::DeadlinePassed => RpcError::Timeout {
                call,
                after: pending.timeout.unwrap_or_default(),
                outcome: Outcome::NotExecuted,
                cause: Some("its deadline had passed before the function could begin".into()),
            },
        }
    }
}
