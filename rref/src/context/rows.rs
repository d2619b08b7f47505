//! Values for people to read: table sizes, held values, and what a shutdown waits for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpc_agent::WorkerInfo;

use crate::id::{ForkId, RRefId};

/// The number of entries of each table of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSizes {
    /// Values owned here, those without users and those still to be created included.
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
    /// Deletions that wait for an earlier batch to the same owner.
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
    /// The reference.
    pub rref: RRefId,
    /// The value's type; `None` before its creation or a fork has named it.
    pub type_name: Option<Arc<str>>,
    /// How far the value is.
    pub state: ValueState,
    /// Time since the reference was created or first named here.
    pub age: Duration,
    /// How many handles the program of this worker holds; clones count as one.
    pub handles: usize,
    /// The users on other workers.
    pub held_by: Vec<Holder>,
}

/// A worker that holds a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Where the user is.
    pub worker: WorkerInfo,
    /// Its user of the reference.
    pub fork: ForkId,
    /// Time since the user was forked or registered.
    pub age: Duration,
}

/// How far a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueState {
    /// Its creation has not arrived.
    Uncreated,
    /// Its function runs.
    Running,
    /// The program sets it later.
    Promised,
    /// It exists.
    Ready,
    /// It will not exist.
    Failed,
}

/// What a shutdown waits for.
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
