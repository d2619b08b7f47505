//! A standby server of the rendezvous' store in this process, which runs as its [`Duty`] decides.

use std::error::Error;
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, Deadline, HostPort, ListenError, ListenOptions, is_loopback_name, listen, listen_at,
};
use c10d_store::journal::JournalError;
use c10d_store::{Leader, Lookup, ServerOptions, StoreError, TcpStoreServer, in_brief};

use crate::engine::duty::Duty;
use crate::engine::own_address::Advertised;
use crate::shell::bootstrap::protected;
use crate::values::error::RendezvousError;
use crate::values::parameters::RendezvousParameters;
use crate::values::start_warnings::{StartWarnings, WarningKind};
use crate::values::store_access::{ServerHook, StoreDirectory};

const THREAD: &str = "store-candidate";

/// How often to check whether the server leads by now, and still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The pause after a server that could not start, or has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// How often to check whether all clients have disconnected, at the end.
const DISCONNECT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A standby server. Drop stops it, so that another candidate takes over.
#[derive(Debug)]
pub(crate) struct Candidate {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Debug)]
struct Orders {
    duty: Duty,
    /// The deadline for a leading server's clients to disconnect, once the server is to stop.
    ends: Option<Deadline>,
}

/// A directory that reports its results to the candidate of this process.
#[derive(Debug)]
struct Observed {
    directory: Arc<dyn Lookup>,
    shared: Arc<Shared>,
}

impl Lookup for Observed {
    fn name(&self) -> String {
        self.directory.name()
    }

    fn leader(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn Error + Send + Sync>> {
        let found = self.directory.leader(deadline, cancel)?;
        self.shared.change(|orders, now| {
            orders.duty.looked(found.is_some(), now);
        });
        Ok(found)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Orders, Duration)) {
        change(&mut self.lock(), self.epoch.elapsed());
        self.changed.notify_all();
    }

    /// Waits until `is_due`, for at most `timeout`.
    fn wait(&self, timeout: Duration, is_due: impl Fn(&Orders) -> bool) -> MutexGuard<'_, Orders> {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), timeout, |orders| !is_due(orders));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Candidate {
    /// Starts the thread. `advertised` is where others find the servers of this process.
    pub(crate) fn start(
        directory: &StoreDirectory,
        advertised: Advertised,
        parameters: &RendezvousParameters,
    ) -> Result<Self, RendezvousError> {
        let shared = Arc::new(Shared {
            epoch: Instant::now(),
            orders: Mutex::new(Orders {
                duty: Duty::new(directory.candidates_max()),
                ends: None,
            }),
            changed: Condvar::new(),
        });
        let options = ServerOptions::default().with_groups(c10d_membership::groups);
        let servers = Servers {
            directory: directory.clone(),
            advertised,
            options: protected(options, parameters.credentials()),
            hook: parameters.server_hook().cloned(),
            start_warnings: parameters.start_warnings().clone(),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        let thread = thread.spawn(move || servers.run());
        let thread = thread.map_err(|source| RendezvousError::Thread {
            name: THREAD,
            source,
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Returns the directory, wrapped so that it reports its results to this candidate.
    pub(crate) fn observed(&self, directory: &StoreDirectory) -> Arc<dyn Lookup> {
        Arc::new(Observed {
            directory: Arc::clone(directory.lookup()),
            shared: Arc::clone(&self.shared),
        })
    }

    /// This node has a rank in a round.
    pub(crate) fn placed(&self, rank: usize) {
        self.shared.change(|orders, _| orders.duty.placed(rank));
    }

    /// Stops the server. A serving server waits for its clients to disconnect, until the deadline at
    /// most.
    pub(crate) fn end(&mut self, deadline: Deadline) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.shared.change(|orders, _| orders.ends = Some(deadline));
        if thread.join().is_err() {
            log::error!("the thread {THREAD} panicked");
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.end(Deadline::at(Instant::now()));
    }
}

/// The thread.
struct Servers {
    directory: StoreDirectory,
    advertised: Advertised,
    options: ServerOptions,
    hook: Option<ServerHook>,
    start_warnings: StartWarnings,
    shared: Arc<Shared>,
}

impl Servers {
    fn run(self) {
        loop {
            let is_due = |orders: &Orders| orders.duty.stands_by() || orders.ends.is_some();
            let orders = self.shared.wait(Duration::MAX, is_due);
            if orders.ends.is_some() {
                return;
            }
            drop(orders);
            let goes_on = match self.stand_by() {
                Ok(server) => self.attend(server),
                Err(error) => {
                    let why = in_brief(&error);
                    log::warn!("this process cannot be a standby for the store: {why}");
                    true
                }
            };
            if !goes_on {
                // The rest of the store cannot be served.
                drop(
                    self.shared
                        .wait(Duration::MAX, |orders| orders.ends.is_some()),
                );
                return;
            }
            drop(self.shared.wait(PAUSE, |orders| orders.ends.is_some()));
        }
    }

    fn stand_by(&self) -> Result<TcpStoreServer, StoreError> {
        let host = self.advertised.host.as_str();
        let listeners = self.listen()?;
        let port = listeners
            .first()
            .and_then(|it: &TcpListener| it.local_addr().ok());
        let address = HostPort::new(host, port.map_or(0, |at| at.port()));
        let options = match self.directory.journal_at(address) {
            Some(journal) => self.options.clone().with_journal(journal),
            None => self.options.clone(),
        };
        let server = TcpStoreServer::stand_by(listeners, options)?;
        if let Some(hook) = &self.hook {
            hook.call(&server);
        }
        Ok(server)
    }

    fn listen(&self) -> Result<Vec<TcpListener>, ListenError> {
        let (host, port) = (self.advertised.host.as_str(), self.directory.port());
        if is_loopback_name(host) {
            return listen(&ListenOptions::default().with_host(host).with_port(port));
        }
        let mut ips: Vec<IpAddr> = host.parse().into_iter().collect();
        ips.extend(&self.advertised.also);
        if ips.is_empty() {
            let name = self.directory.lookup().name();
            let text = format!(
                "listening on all interfaces for the store {name}: no address of this host is known (--local-addr)"
            );
            self.start_warnings.add(WarningKind::Address, text);
        }
        listen_at(&ips, port)
    }

    /// Waits until the server has ended. Returns whether this process may be a standby again.
    fn attend(&self, server: TcpStoreServer) -> bool {
        let name = self.directory.lookup().name();
        let mut was_standby = true;
        let is_due = |orders: &Orders| orders.ends.is_some();
        loop {
            let orders = self.shared.wait(CHECK_INTERVAL, is_due);
            let (ends, stands_by) = (orders.ends, orders.duty.stands_by());
            drop(orders);
            let is_standby = server.is_standby();
            if was_standby && !is_standby {
                was_standby = false;
                let address = server.local_addr();
                let text = format!("this process serves the store {name} now, on {address}");
                self.start_warnings.add(WarningKind::Note, text);
            }
            match ends {
                Some(deadline) => {
                    let is_in_use = || !server.is_standby() && server.connection_count() > 0;
                    while is_in_use() && !deadline.has_passed(Instant::now()) {
                        std::thread::sleep(DISCONNECT_POLL_INTERVAL);
                    }
                    return true;
                }
                None if !stands_by && is_standby => return true,
                None if !server.is_running() => {
                    let failure = server.journal_failure();
                    let why = failure.map_or_else(String::new, |why| format!(": {why}"));
                    log::warn!("stopped serving the store {name}{why}");
                    return !matches!(failure, Some(JournalError::Damaged { .. }));
                }
                None => {}
            }
        }
    }
}
