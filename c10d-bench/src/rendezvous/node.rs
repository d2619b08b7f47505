//! One node of a measured rendezvous.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::{Context as _, Failure};
use crate::store_place::store_place;
use c10d_store::{Store, StoreAddress, TcpStore, TcpStoreOptions};
use clap::Args;
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousSettings, Traffic,
};

const RUN_ID: &str = "bench";

/// The timeout of each step: far above every plausible figure.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The rendezvous that nodes join.
#[derive(Debug, Clone, Args)]
pub(crate) struct Job {
    /// The rendezvous' store.
    #[arg(long, value_parser = store_place)]
    pub(super) store: StoreAddress,

    /// How many nodes are in the round.
    #[arg(long)]
    pub(super) nodes: usize,
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
        let store = TcpStore::open_at(&job.store, options);
        let store: Arc<dyn Store> = Arc::new(store.context("cannot connect to the store")?);
        let backend = C10dBackend::new(Arc::clone(&store), RUN_ID)?;
        let traffic = backend.traffic();
        let settings = RendezvousSettings::new(RUN_ID, job.nodes, job.nodes)?;
        let settings = settings.with_join_timeout(PATIENCE);
        let options = DynamicRendezvousOptions::new()
            // Of a realistic length, as addresses are most of the state.
            .with_local_addr(format!("node-{node:05}.cluster.example"))
            .with_workers_host("127.0.0.1");
        let handler = DynamicRendezvous::new(Arc::new(backend), store, settings, options)?;
        Ok(Self { handler, traffic })
    }
}
