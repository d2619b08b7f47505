//! Where a store is: at a fixed address, or wherever a directory says at the moment.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use c10d_socket::{Cancel, Deadline, HostPort};

/// The address of a store, as a user gives it.
#[derive(Debug, Clone)]
pub enum StoreAddress {
    /// A host and port.
    At(HostPort),
    /// Asked for before each attempt to connect and every second while it lasts: the process that serves the store may change.
    LookedUp(Arc<dyn Lookup>),
}

/// A directory that knows which of several processes serves a store.
pub trait Lookup: Send + Sync + fmt::Debug {
    /// The address as the user gave it, for messages: `etcd://node0:2379/job-17`.
    fn name(&self) -> String;

    /// The process that leads now; `None` if none does. Blocks until the deadline at most, less if cancelled. A lower epoch
    /// than at an earlier call means that the store has lost data.
    ///
    /// # Errors
    /// Any: the caller asks again later, except after [`DataLost`].
    fn leader(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn Error + Send + Sync>>;
}

/// The process that serves a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Where it listens.
    pub address: HostPort,
    /// That of its [`JournalIdentity`](crate::journal::JournalIdentity): an answer of an earlier one is refused. 0 if the
    /// directory does not know it.
    pub epoch: u64,
}

/// An error of [`Lookup::leader`]: the store has lost data, so no process will serve it. The caller does not ask again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DataLost(
    /// The name of the store, the loss, and the way out of it.
    pub String,
);

impl StoreAddress {
    /// Where the store is served at this moment. Blocks until the deadline at most, less if cancelled.
    ///
    /// # Errors
    /// Those of the [directory](Lookup::leader), and that nobody serves the store.
    pub fn current(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<HostPort, Box<dyn Error + Send + Sync>> {
        match self {
            Self::At(address) => Ok(address.clone()),
            Self::LookedUp(lookup) => match lookup.leader(deadline, cancel)? {
                Some(leader) => Ok(leader.address),
                None => Err(format!("no process serves the store {self} at the moment").into()),
            },
        }
    }
}

/// Directories of one name are equal.
impl PartialEq for StoreAddress {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::At(one), Self::At(other)) => one == other,
            (Self::LookedUp(one), Self::LookedUp(other)) => one.name() == other.name(),
            _ => false,
        }
    }
}

impl Eq for StoreAddress {}

impl From<HostPort> for StoreAddress {
    fn from(address: HostPort) -> Self {
        Self::At(address)
    }
}

impl From<Arc<dyn Lookup>> for StoreAddress {
    fn from(lookup: Arc<dyn Lookup>) -> Self {
        Self::LookedUp(lookup)
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::LookedUp(lookup) => f.write_str(&lookup.name()),
        }
    }
}
