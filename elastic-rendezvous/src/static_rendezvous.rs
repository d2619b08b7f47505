//! The rendezvous of a job whose nodes are known beforehand: each is told its rank.
//!
//! One round, no comings and goings: nodes only meet at a store.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::{Deadline, HostPort};
use c10d_store::{
    ErrorContext, Operation, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions,
};

use crate::endpoint::Endpoint;
use crate::error::RendezvousError;
use crate::handler::{BootstrapInfo, Listener, Membership, RendezvousHandler, RendezvousInfo};
use crate::parameters::{ParametersError, RendezvousParameters};

/// The name under which this rendezvous is registered.
pub const STATIC_BACKEND: &str = "static";

/// How long all nodes together may take to come, without a `timeout` setting. The launcher sets 900.
const TIMEOUT: Duration = Duration::from_secs(600);

const THREAD: &str = "rendezvous-static";
const SLICE: Duration = Duration::from_millis(100);

/// What an opening store gets beyond the timeout to say itself why it took so long.
const GRACE: Duration = Duration::from_secs(2);

/// A node's part in a rendezvous of nodes that are known beforehand.
///
/// Rank 0 serves the store at the endpoint and waits until all have come; the others connect. The
/// number of nodes is the parameters' maximum. In PyTorch: `StaticTCPRendezvous`
/// (`torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py`).
#[derive(Debug)]
pub struct StaticRendezvous {
    run_id: String,
    target: HostPort,
    rank: usize,
    world_size: usize,
    timeout: Duration,
    store: Mutex<Option<Arc<TcpStore>>>,
    is_interrupted: AtomicBool,
}

impl StaticRendezvous {
    /// A node with the rank in the setting `rank`. Connects to nothing yet.
    ///
    /// # Errors
    /// [`RendezvousError::Parameters`] when the rank or the endpoint's port is missing or makes no
    /// sense.
    pub fn new(parameters: &RendezvousParameters) -> Result<Self, RendezvousError> {
        let endpoint: Endpoint = parameters
            .endpoint()
            .parse()
            .map_err(ParametersError::from)?;
        let Some(port) = endpoint.port() else {
            return Err(RendezvousError::Parameters(ParametersError::NoPort {
                endpoint: parameters.endpoint().to_owned(),
            }));
        };
        let world_size = parameters.max_nodes();
        let rank = parameters.get_as_int("rank")?.unwrap_or(-1);
        let rank = usize::try_from(rank)
            .ok()
            .filter(|rank| *rank < world_size)
            .ok_or_else(|| ParametersError::Setting {
                key: "rank".to_owned(),
                value: parameters.get("rank").unwrap_or_default().to_owned(),
                expected: "a rank from 0 to one less than the number of nodes",
            })?;
        Ok(Self {
            run_id: parameters.run_id().to_owned(),
            target: HostPort::new(endpoint.host(), port),
            rank,
            world_size,
            timeout: parameters.get_as_duration("timeout", TIMEOUT)?,
            store: Mutex::default(),
            is_interrupted: AtomicBool::new(false),
        })
    }

    fn known_store(&self) -> Option<Arc<TcpStore>> {
        self.store
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn interrupted(&self) -> RendezvousError {
        RendezvousError::Interrupted {
            run_id: self.run_id.clone(),
        }
    }

    /// The store opens on a thread of its own, as nothing can interrupt that. When it is interrupted or
    /// too late the thread is left behind; it ends within twice the timeout (a connection and one request
    /// have it each), with the store that it may have opened.
    fn open(&self) -> Result<Arc<TcpStore>, RendezvousError> {
        let options = TcpStoreOptions::default()
            .with_master(self.rank == 0)
            .with_multi_tenant(true)
            .with_world_size(self.world_size)
            .with_timeout(self.timeout);
        let target = self.target.clone();
        let (sender, opened) = channel();
        std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                // Nobody may be waiting any more.
                let _ = sender.send(TcpStore::open(target.host(), target.port(), options));
            })
            .map_err(|source| RendezvousError::Thread {
                name: THREAD,
                source,
            })?;
        self.await_opened(&opened, Instant::now())
    }

    fn await_opened(
        &self,
        opened: &Receiver<Result<TcpStore, StoreError>>,
        started: Instant,
    ) -> Result<Arc<TcpStore>, RendezvousError> {
        let failed = |error: StoreError| RendezvousError::connection(&self.run_id, error);
        let deadline = Deadline::after(started, self.timeout.saturating_add(GRACE));
        loop {
            match opened.recv_timeout(SLICE) {
                Ok(store) => return store.map(Arc::new).map_err(failed),
                Err(RecvTimeoutError::Timeout) => {
                    if self.is_interrupted.load(Ordering::Acquire) {
                        return Err(self.interrupted());
                    }
                    let now = Instant::now();
                    if deadline.has_passed(now) {
                        // A server that was slow to greet this node, and then fell silent.
                        return Err(failed(self.no_reply(now.duration_since(started))));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RendezvousError::Thread {
                        name: THREAD,
                        source: io::Error::other("it panicked"),
                    });
                }
            }
        }
    }

    fn no_reply(&self, elapsed: Duration) -> StoreError {
        let label = format!("TCP store {}", self.target);
        StoreError::NoReply {
            context: ErrorContext::new(Operation::Open, [], label, elapsed),
            timeout: self.timeout,
        }
    }
}

impl RendezvousHandler for StaticRendezvous {
    fn backend(&self) -> &str {
        STATIC_BACKEND
    }

    /// Yes: the workers use the store at the endpoint.
    fn uses_agent_store(&self) -> bool {
        true
    }

    /// The same round each time: nobody comes, nobody goes.
    fn next_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError> {
        if self.is_interrupted.load(Ordering::Acquire) {
            return Err(self.interrupted());
        }
        let store = match self.known_store() {
            Some(store) => store,
            None => {
                let store = self.open()?;
                *self.store.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&store));
                store
            }
        };
        let master = HostPort::new(self.target.host(), store.port());
        let store: Arc<dyn Store> = store;
        Ok(RendezvousInfo::new(
            0,
            Arc::new(PrefixStore::new(self.run_id.clone(), store)),
            self.rank,
            self.world_size,
            BootstrapInfo::new(master, true, false),
        ))
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        Ok(false)
    }

    fn set_closed(&self) -> Result<(), RendezvousError> {
        Ok(())
    }

    fn membership(&self) -> Result<Membership, RendezvousError> {
        Ok(Membership::default())
    }

    fn add_listener(&self, _listener: Listener) {}

    fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::Release);
    }

    fn leave(&self) -> Result<(), RendezvousError> {
        Ok(())
    }

    fn run_id(&self) -> &str {
        &self.run_id
    }

    fn shutdown(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::parse_config;

    fn node() -> StaticRendezvous {
        let config = parse_config("rank=1,timeout=1").unwrap();
        let parameters = RendezvousParameters::new("static", "node0:29500", "job", 2, 2).unwrap();
        StaticRendezvous::new(&parameters.with_config(config)).unwrap()
    }

    /// A moment at which the timeout of [`node`] and the grace have passed for one who began then.
    fn long_ago() -> Instant {
        Instant::now()
            .checked_sub(Duration::from_secs(1) + GRACE)
            .unwrap()
    }

    #[test]
    fn a_store_that_does_not_open_in_time_is_a_timeout_with_its_address_and_limit() {
        let (_still_opening, opened) = channel();
        let error = node().await_opened(&opened, long_ago()).unwrap_err();
        let RendezvousError::Connection { source, .. } = &error else {
            panic!("{error}");
        };
        let StoreError::NoReply { context, timeout } = &**source else {
            panic!("{error}");
        };
        assert_eq!(*timeout, Duration::from_secs(1));
        assert!(context.elapsed >= *timeout + GRACE, "{error}");
        assert!(error.to_string().contains("node0:29500"), "{error}");
    }

    #[test]
    fn an_interrupted_node_waits_for_its_store_no_longer() {
        let (_still_opening, opened) = channel();
        let node = node();
        node.interrupt();
        let error = node.await_opened(&opened, Instant::now()).unwrap_err();
        assert!(
            matches!(error, RendezvousError::Interrupted { .. }),
            "{error}"
        );
    }
}
