//! The steps that PyTorch's nodes record.
//!
//! `decide` says which ones an action is, `recorded_event` what the record of one is.

use crate::values::node::NodeId;

/// A step to record. Its texts are only created for a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    HostsStore,
    StartsJoin,
    KeepsAlive,
    AddsToParticipants {
        round: i64,
    },
    AddsToWaitList {
        round: i64,
    },
    AddsToRedundancyList {
        round: i64,
    },
    RemovesFromParticipants {
        round: i64,
    },
    RemovesFromWaitList {
        round: i64,
    },
    RemovesFromRedundancyList {
        round: i64,
    },
    MarksComplete {
        round: i64,
    },
    MarksClosed,
    /// A write removed these dead nodes.
    RemovedDead(Vec<NodeId>),
    Synced,
    IsStale,
    Joined {
        round: i64,
        rank: usize,
        world_size: usize,
    },
    Closed,
    SentKeepAlive,
    Failed(Method, Failure),
}

/// The methods whose failures are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    CreateBackend,
    NextRendezvous,
    IsClosed,
    SetClosed,
    Shutdown,
    KeepAlive,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The closest error class of PyTorch.
    pub(crate) class: &'static str,
    pub(crate) message: String,
    /// The error and its causes, one per line.
    pub(crate) trace: String,
}
