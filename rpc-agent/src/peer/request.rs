//! A request that a peer has sent.

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
