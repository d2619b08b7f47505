//! The requests of a peer that have not begun.

use std::time::Instant;

use bytes::Bytes;
use c10d_socket::Deadline;

use super::config::FunctionId;
use super::connection::ConnectionId;
use crate::segmented_queue::SegmentedQueue;

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
