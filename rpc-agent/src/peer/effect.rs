//! The actions after an input, as values.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::call::{PendingCall, Request};
use super::connection::{ConnectionId, Watch};
use super::outgoing::Batch;
use crate::error::RpcError;
use crate::segmented_queue::SegmentedQueue;

/// One thing to be done. `P` completes a call, `S` is a socket.
pub(crate) enum Effect<P, S> {
    /// Write the batch, and report with [`Peer::written`](super::Peer::written). In the meantime, other threads do
    /// not write.
    Send {
        connection: ConnectionId,
        socket: S,
        batch: Batch,
    },
    /// Call [`Peer::flush`](super::Peer::flush) soon: more may leave together with the queued messages. This effect
    /// is not repeated before that.
    SendSoon,
    /// A call has its result.
    Complete {
        call: PendingCall<P>,
        result: Result<Bytes, RpcError>,
    },
    /// A request is to be run by a free thread.
    Admit(Request),
    /// Make an attempt to connect at this time, for the dial of this number.
    Dial { dial: u64, at: Instant },
    /// Close the socket, which the poller watches so.
    Close { socket: S, watched: Watch },
    /// The state of the connection has changed.
    Notify(Notice),
    /// An event that is only counted.
    Count(Count),
}

/// A change for the program or the log.
#[derive(Debug)]
pub(crate) enum Notice {
    Connected {
        address: SocketAddr,
        is_reconnect: bool,
    },
    /// The peer ended its connection with a farewell.
    Left { incarnation: Option<u64> },
    /// The connection ended without one.
    Lost {
        cause: Arc<str>,
        calls_failed: usize,
    },
    /// No connection could be made.
    Unreachable {
        cause: Arc<str>,
        calls_failed: usize,
    },
}

/// An event that is only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// An answer to a call that had ended.
    LateAnswer,
    /// A request that was refused before its function ran.
    RequestRefused,
    /// A request of the agent to itself.
    OwnRequest,
}

/// Effects in the order in which they are to be carried out. One, the usual case, takes no allocation.
pub(crate) struct Effects<P, S> {
    first: Option<Effect<P, S>>,
    /// `None` before there was more than one: then there is nothing to be dropped.
    rest: Option<SegmentedQueue<Effect<P, S>>>,
}

impl<P, S> Default for Effects<P, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, S> Effects<P, S> {
    pub(crate) const fn new() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.as_ref().is_none_or(SegmentedQueue::is_empty)
    }

    pub(crate) fn push(&mut self, effect: Effect<P, S>) {
        if self.is_empty() {
            self.first = Some(effect);
        } else {
            self.rest.get_or_insert_default().push_back(effect);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Effect<P, S>> {
        self.first
            .take()
            .or_else(|| self.rest.as_mut()?.pop_front())
    }
}

/// How a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// It ended with the peer's farewell.
    Left,
    /// It ended without a farewell.
    Failed(io::Error),
}
