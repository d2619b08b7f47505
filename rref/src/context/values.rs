//! The tables of values that this worker owns.

use std::sync::Arc;
use std::time::Instant;

use rpc_agent::WorkerId;

use super::holders::Holders;
use crate::id::RRefId;

/// The most uncreated entries, as peers can make them.
pub(super) const UNCREATED_MAX: usize = 1 << 16;

/// The entry of a reference that this worker owns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Owned<V> {
    /// `None` before the creation or a fork has named it.
    pub(super) type_name: Option<Arc<str>>,
    pub(super) value: Value<V>,
    /// How many handles this worker's program holds; clones count as one.
    pub(super) handles: u32,
    /// The users that are known and not deleted.
    pub(super) forks: Holders,
    pub(super) since: Instant,
}

/// The state of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Value<V> {
    /// The reference was named here before its creation arrived.
    Uncreated,
    /// The function that makes the value runs.
    Running,
    /// This worker's program sets it later.
    Promised,
    Ready(V),
    Failed {
        error: Arc<str>,
        /// The creation did not arrive, and has no effect if it still does.
        is_abandoned: bool,
    },
}

/// A request for a value that does not exist yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) rref: RRefId,
    /// The worker that requests it.
    pub(super) from: WorkerId,
    /// The deadline of the request; `None`: it waits indefinitely.
    pub(super) deadline: Option<Instant>,
}

impl<V> Owned<V> {
    pub(super) fn new(now: Instant, type_name: Option<Arc<str>>, value: Value<V>) -> Self {
        Self {
            type_name,
            value,
            handles: 0,
            forks: Holders::None,
            since: now,
        }
    }
}

impl<V: Clone> Value<V> {
    /// The value or its error; `None` before either.
    pub(super) fn result(&self) -> Option<Result<V, Arc<str>>> {
        match self {
            Self::Uncreated | Self::Running | Self::Promised => None,
            Self::Ready(value) => Some(Ok(value.clone())),
            Self::Failed { error, .. } => Some(Err(Arc::clone(error))),
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
