//! The address of a store: a fixed address, or a directory that names the server that leads.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use c10d_socket::{Cancel, Deadline, HostPort};

/// The address of a store, as a user gives it.
#[derive(Debug, Clone)]
pub enum StoreAddress {
    /// A host and port.
    At(HostPort),
    /// A directory, which is asked before each attempt to connect, and every second during the attempt: another
    /// process may take over the store.
    LookedUp(Arc<dyn Lookup>),
}

/// A directory that names the process that serves a store, for stores that any of several processes may serve.
pub trait Lookup: Send + Sync + fmt::Debug {
    /// Returns the address in the user's form, for messages: `etcd://node0:2379/job-17`.
    fn name(&self) -> String;

    /// Returns the process that leads now; `None` if none does. Blocks until the deadline at most, or until `cancel`
    /// interrupts it. A lower epoch than in an earlier call means that the store has lost data.
    ///
    /// # Errors
    /// Any error: the caller looks up again later, except after [`DataLost`].
    fn leader(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn Error + Send + Sync>>;
}

/// The process that serves a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The address at which the process listens.
    pub address: HostPort,
    /// The epoch in the server's [`JournalIdentity`](crate::journal::JournalIdentity). Answers of a server with an
    /// earlier epoch are refused. 0 if the directory does not have it.
    pub epoch: u64,
}

/// An error of [`Lookup::leader`]: the store has lost data, so no process will serve it. The caller does not look up
/// again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DataLost(
    /// The name of the store, the loss, and the remedy.
    pub String,
);

impl StoreAddress {
    /// Returns the address where the store is served at this moment. Blocks until the deadline at most, or until
    /// `cancel` interrupts it.
    ///
    /// # Errors
    /// The errors of the [directory](Lookup::leader), and an error if no process serves the store.
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
