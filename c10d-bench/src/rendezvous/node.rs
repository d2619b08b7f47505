//! One node of a measured rendezvous.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use c10d_store::{Store, StoreAddress, TcpStore, TcpStoreOptions};
use clap::Args;
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousSettings, Traffic,
};
use rustix::time::{ClockId, clock_gettime};

use crate::failure::{Context as _, Failure};
use crate::servers::store_place;

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

/// The time of a monotonic clock that all processes of this machine share, unlike [`Instant`](std::time::Instant).
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock starts at 0, so the conversions succeed.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The number of open connections to a server on this machine; `None` without /proc.
pub(super) fn connections_to(port: u16) -> Option<usize> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(fs::read_to_string);
    let [Ok(ipv4), ipv6] = tables else {
        return None;
    };
    // Columns: number, own address, peer's address, state, all in hex; 01 is an open connection.
    let suffix = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        columns.next().is_some_and(|own| own.ends_with(&suffix)) && columns.nth(1) == Some("01")
    };
    // A system without IPv6 has no second table.
    let lines = ipv4.lines().chain(ipv6.as_deref().unwrap_or("").lines());
    Some(lines.filter(is_one).count())
}

#[cfg(test)]
mod tests {
    use c10d_store::{ServerOptions, TcpStore, TcpStoreServer};

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn only_connections_of_one_server_are_counted() {
        let bind = || TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
        let connect = |server: &TcpStoreServer| {
            let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
            // The answer proves that the server has accepted.
            store.ping().unwrap();
            store
        };
        let (counted, other) = (bind(), bind());
        let port = counted.local_addr().port();
        assert_eq!(connections_to(port), Some(0));
        let _stores = [&counted, &counted, &other].map(connect);
        assert_eq!(connections_to(port), Some(2));
    }
}
