//! A request that a peer has sent.

use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use c10d_socket::Deadline;

use super::connection::ConnectionId;
use super::functions::FunctionId;

/// Where the answer to a request goes: to the connection on which it came, and to no later one. Another incarnation
/// of the worker may use the same id for another call.
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
    /// When the caller stops waiting.
    pub(crate) deadline: Deadline,
    pub(crate) arrived_at: Instant,
    pub(crate) payload: Bytes,
}

impl fmt::Debug for Request {
    /// The payload's length only: it can be long and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("route", &self.route)
            .field("function", &self.function)
            .field("deadline", &self.deadline)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}
