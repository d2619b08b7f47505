//! One node of a measured rendezvous.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::failure::{Context as _, Failure};
use c10d_store::{Store, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousError, RendezvousSettings,
    Traffic,
};

pub(super) const RUN_ID: &str = "bench";

/// The timeout of each step: far above every plausible figure.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// How many heartbeats a node may miss; the default of torchrun.
pub(super) const KEEP_ALIVE_ATTEMPTS: u32 = 3;

/// The rendezvous that nodes join.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    /// The rendezvous' store.
    pub(super) store: SocketAddr,
    /// The number of nodes in the round.
    pub(super) nodes: usize,
    /// The interval of heartbeats.
    pub(super) keep_alive: Duration,
    /// How many nodes share a connection; 1 for nodes with handlers and threads of their own.
    pub(super) nodes_per_connection: usize,
}

/// A node before it has joined.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) handler: DynamicRendezvous,
    pub(super) traffic: Arc<Traffic>,
}

impl Node {
    /// Connects node number `node`.
    pub(super) fn connect(job: &Job, node: usize) -> Result<Self, Failure> {
        let options = TcpStoreOptions::default().with_timeout(PATIENCE);
        let store = TcpStore::open(&job.store.ip().to_string(), job.store.port(), options)
            .with_context(|| format!("cannot connect node {node} to the store"))?;
        Self::new(job, node, Arc::new(store)).with_context(|| format!("node {node}"))
    }

    fn new(job: &Job, node: usize, store: Arc<dyn Store>) -> Result<Self, RendezvousError> {
        let backend = C10dBackend::new(Arc::clone(&store), RUN_ID)?;
        let traffic = backend.traffic();
        let settings = RendezvousSettings::new(RUN_ID, job.nodes, job.nodes)?
            .with_join_timeout(PATIENCE)
            .with_keep_alive(job.keep_alive, KEEP_ALIVE_ATTEMPTS);
        let options = DynamicRendezvousOptions::new()
            .with_local_addr(addr_of(node))
            .with_workers_host("127.0.0.1");
        let handler = DynamicRendezvous::new(Arc::new(backend), store, settings, options)?;
        Ok(Self { handler, traffic })
    }
}

/// The address of a node, of a realistic length, as addresses are most of the state.
pub(super) fn addr_of(node: usize) -> String {
    format!("node-{node:05}.cluster.example")
}
