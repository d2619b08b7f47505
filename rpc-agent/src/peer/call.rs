//! The calls to a peer that have no answer, and the requests of a peer that have not begun.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::Deadline;

use super::config::FunctionId;
use super::connection::ConnectionId;
use crate::clock::milliseconds;
use crate::error::{CallMessage, CallSite, Outcome, RpcError};
use crate::segmented_queue::SegmentedQueue;
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

/// The route of the answer to a request: the connection on which the request arrived, and no later connection.
/// Another incarnation of the worker may use the same id for another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ReplyRoute {
    /// `None` for a request of this agent to itself.
    pub(crate) connection: Option<ConnectionId>,
    /// The caller's id of the call.
    pub(crate) call: u64,
}

/// A request that has not begun.
pub(crate) struct Request {
    pub(crate) route: ReplyRoute,
    pub(crate) function: FunctionId,
    /// The time when the caller stops waiting.
    pub(crate) deadline: Deadline,
    pub(crate) arrived_at: Instant,
    pub(crate) payload: Bytes,
}

/// The requests of one peer that have not begun. Back pressure for a peer that does not read its answers: with more
/// unsent bytes than the limit no request begins, so that no further answers pile up.
#[derive(Default)]
pub(super) struct Admission {
    /// The number of requests that have not begun: parked, or waiting for a thread.
    pub(super) queued: usize,
    /// The requests that wait until the peer has read some of its answers.
    pub(super) parked: SegmentedQueue<Request>,
    /// Requests refused while the peer did not read.
    pub(super) refused_unread: usize,
}

impl Admission {
    /// Requests that were admitted have begun, or will not.
    pub(super) fn left(&mut self, requests: usize) {
        self.queued = self.queued.saturating_sub(requests);
    }

    /// The peer has read: the parked requests may run.
    pub(super) fn unpark(&mut self) -> impl Iterator<Item = Request> + '_ {
        self.refused_unread = 0;
        self.parked.drain()
    }

    /// The connection ended: drops the parked requests and returns how many these were.
    pub(super) fn connection_ended(&mut self) -> usize {
        let parked = self.unpark().count();
        self.left(parked);
        parked
    }
}
