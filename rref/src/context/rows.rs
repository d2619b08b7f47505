//! Values for people to read: table sizes, held values, and the entries that a shutdown waits for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpc_agent::WorkerInfo;

use crate::id::{ForkId, RRefId};

/// The number of entries of each table of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSizes {
    /// Values owned here, including values without users and values that are still to be created.
    pub owners: usize,
    /// References that were received, registered or requested before their creation arrived.
    pub pending_owners: usize,
    /// Users on other workers of values owned here.
    pub forks: usize,
    /// Users here that their owners have not answered.
    pub pending_users: usize,
    /// Users here that their owners have confirmed.
    pub confirmed_users: usize,
    /// Users here that cannot be used.
    pub failed_users: usize,
    /// Users that were forked here for other workers and are not known to be registered.
    pub pending_children: usize,
    /// Messages without an answer, including stalled messages.
    pub deletes_queued: usize,
    /// Messages without an answer, stalled ones included.
    pub pending_futures: usize,
    /// Messages whose retries are exhausted.
    pub stalled: usize,
    /// Requests that wait for a value.
    pub parked_fetches: usize,
    /// Ranges of remembered ids of deleted references and users.
    pub tombstone_ranges: usize,
}

/// A value that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldValue {
    /// The id of the reference to the value.
    pub rref: RRefId,
    /// The value's type; `None` before its creation or a fork has named it.
    pub type_name: Option<Arc<str>>,
    /// The state of the value.
    pub state: ValueState,
    /// Time since the reference was created or first named here.
    pub age: Duration,
    /// The number of handles that the program of this worker holds; clones count as one.
    pub handles: usize,
    /// The users of the value on other workers.
    pub held_by: Vec<Holder>,
}

/// A worker that holds a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The worker of the user.
    pub worker: WorkerInfo,
    /// The worker's user of the reference.
    pub fork: ForkId,
    /// Time since the user was forked or registered.
    pub age: Duration,
}

/// The state of a value on its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueState {
    /// The creation of the value has not arrived.
    Uncreated,
    /// The function that makes the value is running.
    Running,
    /// The program will set the value later.
    Promised,
    /// The value exists.
    Ready,
    /// The value could not be made, and will not exist.
    Failed,
}

/// The kind of entries that a shutdown waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MissingKind {
    /// Values that the worker's program holds.
    HeldValues,
    /// Functions on the worker that make values.
    RunningFunctions,
    /// References on the worker to values here.
    References,
    /// Creations that the worker has not answered.
    Creations,
    /// References that the worker's program holds.
    HeldReferences,
    /// References that the worker has not received or registered.
    Children,
    /// Messages that the worker has not answered.
    Messages,
    /// Deletions that are queued for the worker.
    Deletions,
    /// Requests for values that the worker should create.
    Fetches,
}

impl fmt::Display for ValueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uncreated => "uncreated",
            Self::Running => "running",
            Self::Promised => "promised",
            Self::Ready => "ready",
            Self::Failed => "failed",
        })
    }
}

impl fmt::Display for MissingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeldValues => "values held by its program",
            Self::RunningFunctions => "functions that make values",
            Self::References => "references to values of this worker",
            Self::Creations => "creations to be answered",
            Self::HeldReferences => "references held by its program",
            Self::Children => "references to be received and registered",
            Self::Messages => "messages to be answered",
            Self::Deletions => "deletions to be sent",
            Self::Fetches => "requests for values that it should create",
        })
    }
}
