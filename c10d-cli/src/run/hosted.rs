//! The store servers that this process hosts: observed, and with a status page on their port.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use c10d_inspect::{ExplainOptions, Report, explain};
use c10d_store::{StoreObserver, TcpStoreServer};
use elastic_rendezvous::ServerHook;

/// The servers of one run.
#[derive(Debug, Default)]
pub(super) struct Hosted {
    servers: Mutex<Vec<HostedServer>>,
}

/// One server.
#[derive(Debug, Clone)]
pub(super) struct HostedServer {
    addresses: Vec<SocketAddr>,
    observer: StoreObserver,
}

impl Hosted {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The hook that observes each server from its start.
    pub(super) fn hook(self: &Arc<Self>) -> ServerHook {
        let hosted = Arc::downgrade(self);
        ServerHook::new(move |server| {
            if let Some(hosted) = hosted.upgrade() {
                hosted.observe(server);
            }
        })
    }

    /// The server that listens on `port`, if this process hosts one.
    pub(super) fn on_port(&self, port: u16) -> Option<HostedServer> {
        let servers = self.lock();
        let is_on_port = |it: &&HostedServer| it.addresses.iter().any(|at| at.port() == port);
        servers.iter().find(is_on_port).cloned()
    }

    fn observe(&self, server: &TcpStoreServer) {
        let addresses = server.local_addrs().to_vec();
        if self.lock().iter().any(|known| known.addresses == addresses) {
            return;
        }
        let observer = server.observer();
        self.lock().push(HostedServer {
            addresses,
            observer,
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<HostedServer>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostedServer {
    /// What the store knows about the job. Blocks for at most `timeout`; `None` if the server has ended or
    /// does not answer in time.
    pub(super) fn report(&self, timeout: Duration) -> Option<Report> {
        self.fresh_report(timeout)
    }

    /// The same, but never from before the call.
    pub(super) fn fresh_report(&self, timeout: Duration) -> Option<Report> {
        let snapshot = self.observer.snapshot(timeout).ok()?;
        Some(explain(&snapshot, &ExplainOptions::default()))
    }
}
