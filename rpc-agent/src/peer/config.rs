//! The configuration that all peers of an agent share: names of functions, and limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::worker::WorkerInfo;

/// A registered function: its place in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FunctionId(pub(crate) u32);

/// Identifies a [`Registry`](crate::Registry), so that code which registers functions can check later that an agent was
/// started with the same registry.
#[derive(Debug, Clone, Default)]
pub struct RegistryId(Arc<u8>);

impl PartialEq for RegistryId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RegistryId {}

/// The names of the functions that peers may call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Functions {
    /// The registry that has the functions.
    pub(crate) registry: RegistryId,
    names: Vec<Arc<str>>,
    ids: BTreeMap<Arc<str>, FunctionId>,
}

impl Functions {
    /// Adds a function. `None` if the name is taken.
    pub(crate) fn add(&mut self, name: Arc<str>) -> Option<FunctionId> {
        if self.ids.contains_key(&name) {
            return None;
        }
        // Names of at most 255 bytes that are held in memory are fewer than 2^32.
        let id = FunctionId(self.names.len() as u32);
        self.ids.insert(Arc::clone(&name), id);
        self.names.push(name);
        Some(id)
    }

    pub(crate) fn find(&self, name: &str) -> Option<FunctionId> {
        self.ids.get(name).copied()
    }

    /// The name of a function that was added.
    pub(crate) fn name(&self, id: FunctionId) -> &str {
        &self.names[id.0 as usize]
    }

    /// Returns all names, in the order of the ids.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}

/// The limits and names that decisions about a peer depend on. Fixed when the agent starts.
#[derive(Debug)]
pub(crate) struct Config {
    /// This agent's own worker.
    pub(crate) me: WorkerInfo,
    /// The number of this process; never 0, which means "any" on the wire.
    pub(crate) incarnation: u64,
    /// The largest request or answer that this agent takes, in bytes.
    pub(crate) message_bytes_max: u64,
    /// With more unsent bytes than this a call fails, and requests of the peer are parked.
    pub(crate) backlog_bytes_max: u64,
    /// Requests of one peer that may wait for a thread.
    pub(crate) requests_queued_max: usize,
    /// How long attempts to connect continue, from the first attempt, before the waiting calls fail.
    pub(crate) connect_timeout: Duration,
    /// The functions that peers may call.
    pub(crate) functions: Functions,
}
