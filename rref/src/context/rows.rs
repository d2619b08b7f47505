//! The rows of the tables, for people to read: snapshots, sizes, and what a shutdown waits for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpc_agent::WorkerId;

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

/// All tables of one worker at one moment. `Display` prints them as a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The worker that the tables belong to.
    pub worker: WorkerId,
    /// The number of rows, and of entries that have no row.
    pub sizes: TableSizes,
    /// Values of this worker.
    pub owned: Vec<OwnedRow>,
    /// Users on this worker.
    pub users: Vec<UserRow>,
    /// Users that were forked here for other workers.
    pub children: Vec<ChildRow>,
    /// Messages without an answer.
    pub messages: Vec<MessageRow>,
}

/// A value of the snapshot's worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedRow {
    /// The reference.
    pub rref: RRefId,
    /// The value's type; `None` before its creation or a fork has named it.
    pub type_name: Option<Arc<str>>,
    /// How far the value is.
    pub state: ValueState,
    /// How many handles the program of this worker holds; clones count as one.
    pub handles: usize,
    /// The users on other workers.
    pub forks: Vec<ForkRow>,
    /// How many requests wait for the value.
    pub waiters: usize,
    /// Time since the reference was created or first named here.
    pub age: Duration,
}

/// A user of a value, on another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForkRow {
    /// The user.
    pub fork: ForkId,
    /// The worker that has it.
    pub worker: WorkerId,
    /// Whether it is known to have arrived there.
    pub has_arrived: bool,
    /// Time since it was forked or registered.
    pub age: Duration,
}

/// A user on the snapshot's worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserRow {
    /// The reference.
    pub rref: RRefId,
    /// The user.
    pub fork: ForkId,
    /// The worker that has the value.
    pub owner: WorkerId,
    /// The value's type.
    pub type_name: Arc<str>,
    /// How far the user is.
    pub state: UserState,
    /// Whether the program holds it.
    pub has_handle: bool,
    /// How many children keep it alive.
    pub children: usize,
    /// Time since it was created or received.
    pub age: Duration,
}

/// A user that was forked here for another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildRow {
    /// The child.
    pub fork: ForkId,
    /// The user here that it keeps alive.
    pub parent: ForkId,
    /// The worker that it was sent to.
    pub to: WorkerId,
    /// Time since it was forked.
    pub age: Duration,
}

/// A message without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageRow {
    /// What the message is for.
    pub kind: MessageKind,
    /// The user that it is about; `None` for deletions.
    pub fork: Option<ForkId>,
    /// The receiver.
    pub to: WorkerId,
    /// Whether its retries are exhausted.
    pub has_stalled: bool,
    /// Time since it was sent or stalled.
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

/// How far a user is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UserState {
    /// The owner has not answered the creation.
    Creating,
    /// The owner has not answered the registration.
    Requesting,
    /// The owner knows the user.
    Confirmed,
    /// The creation was not answered in time; the owner is asked to settle it.
    Unsettled,
    /// The creation failed.
    Failed,
    /// The owner refused the registration.
    Refused,
    /// The owner is dead.
    OwnerLost,
}

/// What a message about references is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageKind {
    /// Creates a value.
    Creation,
    /// Registers a user at its owner.
    Registration,
    /// Releases the parent of a registered child.
    Release,
    /// Settles a creation that was not answered in time.
    Settlement,
    /// Asks a worker whether a child has arrived.
    Probe,
    /// Asks an owner whether it knows a child.
    Query,
    /// Deletes users at their owner.
    Deletion,
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

impl fmt::Display for UserState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creating => "creating",
            Self::Requesting => "requesting",
            Self::Confirmed => "confirmed",
            Self::Unsettled => "unsettled",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::OwnerLost => "owner lost",
        })
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creation => "creation",
            Self::Registration => "registration",
            Self::Release => "release",
            Self::Settlement => "settlement",
            Self::Probe => "probe",
            Self::Query => "query",
            Self::Deletion => "deletion",
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

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "references of worker {}", self.worker)?;
        for row in &self.owned {
            let type_name = row.type_name.as_deref().unwrap_or("unknown type");
            writeln!(
                f,
                "  value OwnerRRef({}) of `{type_name}`: {}, {} handles here, {} waiting, for {:?}",
                row.rref, row.state, row.handles, row.waiters, row.age
            )?;
            for fork in &row.forks {
                let arrival = if fork.has_arrived { "" } else { " (under way)" };
                writeln!(
                    f,
                    "    held by worker {}{arrival} as {}, for {:?}",
                    fork.worker, fork.fork, fork.age
                )?;
            }
        }
        for row in &self.users {
            let held = if row.has_handle { "held" } else { "dropped" };
            writeln!(
                f,
                "  user UserRRef(RRefId = {}, ForkId = {}) of `{}` on worker {}: {}, {held}, \
                 {} children, for {:?}",
                row.rref, row.fork, row.type_name, row.owner, row.state, row.children, row.age
            )?;
        }
        for row in &self.children {
            writeln!(
                f,
                "  child {} of {} to worker {}, for {:?}",
                row.fork, row.parent, row.to, row.age
            )?;
        }
        for row in &self.messages {
            write!(f, "  {}", row.kind)?;
            if let Some(fork) = row.fork {
                write!(f, " of {fork}")?;
            }
            let stalled = if row.has_stalled { ", stalled" } else { "" };
            writeln!(f, " to worker {}{stalled}, for {:?}", row.to, row.age)?;
        }
        Ok(())
    }
}
