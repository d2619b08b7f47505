//! The store of a rendezvous: the directory that finds it, the route of a node to it, and a callback for its servers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use c10d_socket::HostPort;
use c10d_store::journal::JournalSource;
use c10d_store::{ConnectionEnds, Lookup, TcpStoreServer};

/// Creates the journal of a server that other nodes find at this address.
type MakeJournal = dyn Fn(HostPort) -> JournalSource + Send + Sync;

/// A directory in which a rendezvous finds its store, instead of an endpoint. Nodes can become candidates to serve the
/// store. For [`RendezvousParameters::with_store`](crate::RendezvousParameters::with_store).
#[derive(Clone)]
pub struct StoreDirectory {
    lookup: Arc<dyn Lookup>,
    network: HostPort,
    candidates: Option<(usize, Arc<MakeJournal>)>,
    port: u16,
}

impl StoreDirectory {
    /// Creates a directory of a store that other processes serve. `network` is an address that all nodes reach, such as
    /// an address of the directory itself: nodes find each other at their addresses in that network.
    #[must_use]
    pub fn new(lookup: Arc<dyn Lookup>, network: HostPort) -> Self {
        Self {
            lookup,
            network,
            candidates: None,
            port: 0,
        }
    }

    /// Makes the first `max` nodes of each round candidates to serve the store, and every node that finds no server.
    /// `journal` is called for each server, with the server's address as other nodes use it, and creates a journal that
    /// all candidates share.
    #[must_use]
    pub fn with_candidates(
        mut self,
        max: usize,
        journal: impl Fn(HostPort) -> JournalSource + Send + Sync + 'static,
    ) -> Self {
        self.candidates = (max > 0).then(|| (max, Arc::new(journal) as Arc<MakeJournal>));
        self
    }

    /// Changes every candidate's journal by `change`, for example to observe its failures.
    #[must_use]
    pub fn with_each_journal(
        mut self,
        change: impl Fn(&JournalSource) -> JournalSource + Send + Sync + 'static,
    ) -> Self {
        self.candidates = self.candidates.map(|(max, make)| {
            let make = move |address| change(&make(address));
            (max, Arc::new(make) as Arc<MakeJournal>)
        });
        self
    }

    /// Sets the port at which a node serves the store. Default: a free port.
    #[must_use]
    pub const fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Returns the number of nodes of a round that are candidates.
    #[must_use]
    pub fn candidates_max(&self) -> usize {
        self.candidates.as_ref().map_or(0, |(max, _)| *max)
    }

    pub(crate) const fn lookup(&self) -> &Arc<dyn Lookup> {
        &self.lookup
    }

    pub(crate) const fn network(&self) -> &HostPort {
        &self.network
    }

    /// The port at which a node serves the store; 0 for a free port.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn journal_at(&self, address: HostPort) -> Option<JournalSource> {
        let (_, journal) = self.candidates.as_ref()?;
        Some(journal(address))
    }
}

/// Clones of one directory are equal.
impl PartialEq for StoreDirectory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.lookup, &other.lookup)
    }
}

impl Eq for StoreDirectory {}

impl fmt::Debug for StoreDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let candidates = self.candidates_max();
        write!(f, "{} ({candidates} candidates)", self.lookup.name())
    }
}

/// The route of a node to the store of its rendezvous.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreRoute {
    /// The endpoint that this node was given, with its port; `None` for a store in a file or in a directory. Behind
    /// address translation it differs from node to node.
    pub endpoint: Option<HostPort>,
    /// The address of this node on the network that leads to the store. On the node that serves the store, the address at
    /// which the first node of another host has reached it, if there is one. `None` for a store in a file.
    pub local: Option<IpAddr>,
    /// The other end of the node's connection to the store: its server, or what forwards to it.
    pub remote: Option<SocketAddr>,
    /// The addresses of the latest eight other hosts with clients, on the node that serves the store. Empty on other
    /// nodes.
    pub peers: Vec<IpAddr>,
}

impl StoreRoute {
    pub(crate) fn new(endpoint: impl Into<Option<HostPort>>, ends: Option<ConnectionEnds>) -> Self {
        Self {
            endpoint: endpoint.into(),
            local: ends.map(|ends| ends.local.ip().to_canonical()),
            remote: ends.map(|ends| ends.remote),
            peers: Vec::new(),
        }
    }
}

/// A callback that gets each store server that a rendezvous starts or shares in this process: for the
/// rendezvous and for the workers. It is called before the address is published, and must not block.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use c10d_store::TcpStoreServer;
/// use elastic_rendezvous::{RendezvousParameters, ServerHook, create_handler};
///
/// let ports: Arc<Mutex<Vec<u16>>> = Arc::default();
/// let seen = Arc::clone(&ports);
/// let hook = ServerHook::new(move |server: &TcpStoreServer| {
///     seen.lock().expect("no panic").push(server.local_addr().port());
/// });
/// let parameters = RendezvousParameters::new("c10d", "localhost:0", "job", 1, 1)?
///     .with_server_hook(hook);
/// let node = create_handler(&parameters)?;
/// let round = node.next_rendezvous()?;
/// assert_eq!(ports.lock().expect("no panic").last(), Some(&round.bootstrap.master.port()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ServerHook(Arc<dyn Fn(&TcpStoreServer) + Send + Sync>);

impl ServerHook {
    /// A hook that calls `hook`.
    #[must_use]
    pub fn new(hook: impl Fn(&TcpStoreServer) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    pub(crate) fn call(&self, server: &TcpStoreServer) {
        (self.0)(server);
    }
}

/// Clones of one hook are equal.
impl PartialEq for ServerHook {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ServerHook {}

impl fmt::Debug for ServerHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerHook")
    }
}
