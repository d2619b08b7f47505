//! The status pages of the stores that a rendezvous serves in this process.

use std::sync::{Arc, Mutex, PoisonError};

use c10d_inspect::http::{StatusOptions, StatusServer};
use c10d_store::TcpStoreServer;

/// The pages on the ports of the stores, until [`Pages::end`].
#[derive(Debug)]
pub(crate) struct Pages {
    options: StatusOptions,
    served: Mutex<Vec<Page>>,
}

#[derive(Debug)]
struct Page {
    ports: Vec<u16>,
    server: Arc<StatusServer>,
}

impl Pages {
    pub(crate) fn new(options: StatusOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            served: Mutex::default(),
        })
    }

    /// Serves pages on the port of this store, unless it has some. A job runs without them if the system has no thread left.
    pub(crate) fn serve(&self, store: &TcpStoreServer) {
        let ports: Vec<u16> = store.local_addrs().iter().map(|it| it.port()).collect();
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if served.iter().any(|page| page.ports == ports) {
            return;
        }
        if let Ok(server) = StatusServer::start(store.observer(), self.options.clone()) {
            store.set_http_handler(Arc::clone(&server) as _);
            served.push(Page { ports, server });
        }
    }

    /// Whether this process serves pages on the port.
    pub(crate) fn are_on(&self, port: u16) -> bool {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.iter().any(|page| page.ports.contains(&port))
    }

    /// Ends the pages. Blocks for some seconds at most.
    pub(crate) fn end(&self) {
        let served =
            std::mem::take(&mut *self.served.lock().unwrap_or_else(PoisonError::into_inner));
        for page in served {
            page.server.shutdown();
        }
    }
}
