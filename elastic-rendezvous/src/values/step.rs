//! The steps that PyTorch's nodes record and that change what a node is a part of, or fail.
//!
//! `decide` says which ones an action is, `recorded_event` what the record of one is.

/// A step to record. Its texts are only created for a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    HostsStore,
    MarksComplete {
        round: i64,
    },
    MarksClosed,
    Joined {
        round: i64,
        rank: usize,
        world_size: usize,
    },
    Closed,
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
