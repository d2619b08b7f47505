//! The requests of a node to the store, and the store's replies.

use std::collections::BTreeSet;
use std::time::Duration;

use super::message::Place;
use crate::engine::links::Marks;
use crate::values::goal::Entry;
use crate::values::node::NodeId;
use crate::values::state::{RendezvousState, Token, Written};

/// An operation on the store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ask {
    /// Writes the node's own heartbeat.
    WriteHeartbeat(u64),
    /// The lease, if there is one.
    ReadLease,
    /// Replaces the lease if it is the expected one; empty for none.
    Claim {
        expected: Vec<u8>,
        lease: Vec<u8>,
    },
    /// Puts a request into the queue.
    Push(Vec<u8>),
    /// The summary, if there is one.
    ReadSummary,
    /// The node's own answer, if there is one.
    ReadAnswer,
    /// Waits for an own answer other than this one.
    AwaitAnswer {
        known: Vec<u8>,
        until: Duration,
    },
    /// Waits for another summary than this one.
    AwaitSummary {
        known: Vec<u8>,
        until: Duration,
    },
    /// A holder's question for the number of handlers, which are numbered up to this number.
    CountNodes,
    /// A holder's question for the state.
    ReadState,
    /// Whether the state differs from the known one, apart from heartbeats.
    CheckState,
    /// Writes [`Station::to_write`](super::Station::to_write).
    WriteState,
    /// Writes answers by the index of the node.
    WriteAnswers(Vec<(u32, Vec<u8>)>),
    WriteSummary(Vec<u8>),
    /// The heartbeats of these nodes; empty for a node that has written no heartbeat.
    ReadHeartbeats(Vec<u32>),
    /// The marks of these nodes (docs/spec/rendezvous.md, section 10.3): [`Reply::Marks`].
    ReadMarks(Vec<NodeId>),
    /// Sets the mark of this node: [`Reply::Done`], or [`Reply::Marks`] without any if the store cannot have marks.
    SetMark,
    /// Takes all requests from the queue, or waits for one.
    TakeRequests {
        until: Duration,
    },
    /// Nothing until a new goal.
    Idle,
    /// The goal is over.
    Done(Result<Option<Place>, Ending>),
}

/// The result of an operation.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, and moved only to its engine"
)]
pub(crate) enum Reply {
    /// The operation is done.
    Done,
    /// The value, or the resulting one after a compare-and-set.
    Value(Option<Vec<u8>>),
    State(Option<(RendezvousState, Token)>),
    Written(Written),
    IsSame(bool),
    Heartbeats(Vec<Vec<u8>>),
    Requests(Vec<Vec<u8>>),
    Count(u32),
    /// The nodes that say that they have gone.
    Gone(BTreeSet<NodeId>),
    /// The answers of this round's members to nodes that want to enter it.
    Entry(i64, Entry),
    /// The marks that were asked for; `None` if the store cannot have any.
    Marks(Option<Marks>),
    /// A wait is over without a result.
    Nothing,
}

/// The reason why a goal was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Closed,
    NotNeeded,
    TimedOut,
    /// The lease has no holder, and this node must not hold it, because it is on no list.
    NoHolder,
}

impl Ask {
    /// The time until which the operation may wait; `None` if it does not wait.
    pub(crate) const fn until_mut(&mut self) -> Option<&mut Duration> {
        match self {
            Self::AwaitAnswer { until, .. }
            | Self::AwaitSummary { until, .. }
            | Self::TakeRequests { until } => Some(until),
            _ => None,
        }
    }
}
