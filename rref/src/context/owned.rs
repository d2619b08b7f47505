//! The tables of values that this worker owns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use rpc_agent::WorkerId;

use super::effect::RequestToken;
use crate::id::{ForkId, RRefId};

/// The most requests that wait for values.
pub(super) const WAITING_MAX: usize = 1 << 16;

/// The most references that were heard of before their creation. Peers make such entries.
pub(super) const UNCREATED_MAX: usize = 1 << 16;

/// A reference that is owned here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Owned<V> {
    /// Unknown until the creation or a fork has told it.
    pub(super) type_name: Option<Arc<str>>,
    pub(super) value: Value<V>,
    /// Held by this worker's program.
    pub(super) handles: usize,
    /// The users that are known and not deleted.
    pub(super) forks: BTreeMap<ForkId, Holder>,
    /// Requests for the value.
    pub(super) waiters: BTreeSet<RequestToken>,
    pub(super) since: Instant,
}

/// What there is of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Value<V> {
    /// The creation has not come.
    Uncreated,
    /// The function runs.
    Running,
    /// The program of this worker gives it later.
    Promised,
    Ready(V),
    Failed {
        error: Arc<str>,
        /// The creation never came, and will not.
        is_abandoned: bool,
    },
}

/// Who has a user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub(super) worker: WorkerId,
    /// Of the worker's process, if it has come with the user itself; one that was sent from here may have
    /// gone to the next process.
    pub(super) incarnation: Option<u64>,
    pub(super) since: Instant,
    pub(super) arrival: Arrival,
}

/// Whether a user that was sent from here is known to have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Arrival {
    /// Its message is being encoded.
    Encoding,
    /// In a call that has not ended.
    InCall,
    /// It was sent, or asked for last, at that time.
    UnderWay { since: Instant },
    /// Its worker is being asked.
    Asked,
    /// The worker said so, or came with it.
    Arrived,
}

/// A request for a value that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) rref: RRefId,
    /// Who asks.
    pub(super) from: WorkerId,
    /// When that one gives up.
    pub(super) deadline: Option<Instant>,
}

impl<V> Owned<V> {
    pub(super) fn new(now: Instant, type_name: Option<Arc<str>>, value: Value<V>) -> Self {
        Self {
            type_name,
            value,
            handles: 0,
            forks: BTreeMap::new(),
            waiters: BTreeSet::new(),
            since: now,
        }
    }
}

impl<V: Clone> Value<V> {
    /// Unless it is still to come.
    pub(super) fn result(&self) -> Option<Result<V, Arc<str>>> {
        match self {
            Self::Uncreated | Self::Running | Self::Promised => None,
            Self::Ready(value) => Some(Ok(value.clone())),
            Self::Failed { error, .. } => Some(Err(Arc::clone(error))),
        }
    }
}

impl Holder {
    pub(super) fn arrived(now: Instant, worker: WorkerId, incarnation: u64) -> Self {
        Self {
            worker,
            incarnation: Some(incarnation),
            since: now,
            arrival: Arrival::Arrived,
        }
    }
}

impl<V> Value<V> {
    /// The error of a reference whose creator was lost before it created the value.
    pub(super) fn lost_creator(rref: RRefId) -> Self {
        let worker = rref.0.created_on;
        Self::Failed {
            error: format!("worker {worker} was lost before it created {rref}").into(),
            is_abandoned: true,
        }
    }
}
