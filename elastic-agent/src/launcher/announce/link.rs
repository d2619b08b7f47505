//! The connection on which announcements travel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::agent::StartedWorkers;
use c10d_socket::{
    Backoff, BackoffOptions, Cancel, Credentials, Deadline, HostPort, resolve, resolve_local,
};
use c10d_store::{StoreError, TcpStore, TcpStoreOptions};

use crate::launcher::own_address::own_address_towards;
use crate::launcher::processes::StoreAddress;

/// How long connecting, one announcement or one name lookup may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The pauses after failures: nothing depends on announcements.
fn pauses() -> BackoffOptions {
    BackoffOptions::default()
        .with_first(Duration::from_secs(1))
        .with_factor(2.0)
        .with_max(Duration::from_secs(30))
}

/// The store in use, which another thread may close.
pub(super) type Open = Arc<Mutex<Option<Arc<TcpStore>>>>;

/// Ends a call that another thread makes.
pub(super) fn close(open: &Open) {
    let store = open.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(store) = store {
        store.close();
    }
}

/// Sends announcements to one store: that of the workers of the current round, or that of the rendezvous.
#[derive(Debug)]
pub(super) struct Link {
    open: Open,
    /// `None` if the workers' store is not served by an agent.
    target: Option<HostPort>,
    /// What the store asks for.
    credentials: Option<Credentials>,
    /// Where workers reach the store.
    reached_at: Option<HostPort>,
    address: Option<StoreAddress>,
    is_unsupported: bool,
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl Link {
    pub(super) fn new(open: Open) -> Self {
        Self {
            open,
            target: None,
            credentials: None,
            reached_at: None,
            address: None,
            is_unsupported: false,
            backoff: Backoff::new(pauses(), fastrand::u64(..)),
            not_before: None,
        }
    }

    /// Sends to a store that stays the same.
    pub(super) fn to(open: Open, store: HostPort, credentials: Option<Credentials>) -> Self {
        Self {
            target: Some(store),
            credentials,
            ..Self::new(open)
        }
    }

    /// Ends the connection. The next announcement makes a new one.
    pub(super) fn close(&self) {
        close(&self.open);
    }

    /// Sends to the store of these workers from now on.
    pub(super) fn aim(&mut self, started: &StartedWorkers) {
        let master = &started.master;
        // A worker that serves the store does so with PyTorch's server, and later.
        let target = started.is_agent_store.then(|| master.clone());
        let reached_at = started.relay.as_ref().unwrap_or(master);
        if self.target == target && self.reached_at.as_ref() == Some(reached_at) {
            return;
        }
        close(&self.open);
        let deadline = Deadline::after(Instant::now(), TIMEOUT);
        let mut address = address_of(reached_at, deadline);
        if started.relay.is_some() {
            address.seen_as = seen_by(master, deadline);
        }
        self.address = Some(address);
        self.reached_at = Some(reached_at.clone());
        self.target = target;
        self.credentials.clone_from(&started.credentials);
        self.is_unsupported = false;
        self.backoff.reset();
        self.not_before = None;
    }

    /// The addresses at which workers reach the store; `None` before they are known.
    pub(super) const fn address(&self) -> Option<&StoreAddress> {
        self.address.as_ref()
    }

    /// Whether there is a connection.
    pub(super) fn is_open(&self) -> bool {
        self.current().is_some()
    }

    /// Waits until the server has taken the announcements so far, for at most 1 s.
    pub(super) fn confirm(&self) {
        if let Some(store) = self.current() {
            // A connection that was lost shows at the next announcement.
            let _ = store.ping();
        }
    }

    /// Sends an announcement, over a new connection if there is none. Blocks for at most 2 s. A failure is
    /// logged at the level "debug": nothing depends on announcements.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let Some(target) = self.target.clone().filter(|_| !self.is_unsupported) else {
            return;
        };
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            return;
        }
        match self.try_send(&target, bytes) {
            Ok(true) => {
                self.backoff.reset();
                self.not_before = None;
            }
            Ok(false) => {
                log::debug!("the store {target} takes no announcements of workers");
                self.is_unsupported = true;
                close(&self.open);
            }
            Err(error) => {
                log::debug!("cannot announce the workers of this node: {error}");
                close(&self.open);
                self.not_before = Some(Instant::now() + self.backoff.next_delay());
            }
        }
    }

    fn try_send(&self, target: &HostPort, bytes: &[u8]) -> Result<bool, StoreError> {
        let store = match self.current() {
            Some(store) => store,
            None => {
                let mut options = TcpStoreOptions::default().with_timeout(TIMEOUT);
                if let Some(credentials) = &self.credentials {
                    options = options.with_credentials(credentials.clone());
                }
                let store = TcpStore::open(target.host(), target.port(), options)?;
                let store = Arc::new(store);
                *self.open.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&store));
                store
            }
        };
        store.announce(bytes)
    }

    fn current(&self) -> Option<Arc<TcpStore>> {
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The address of this machine that the store sees; `None` if it is unknown.
fn seen_by(master: &HostPort, deadline: Deadline) -> Option<IpAddr> {
    let addresses = resolve(master, deadline, &Cancel::NEVER).ok()?;
    own_address_towards(*addresses.first()?).ok()
}

/// The addresses at which workers reach the store. A store on this machine is also reached by loopback.
fn address_of(master: &HostPort, deadline: Deadline) -> StoreAddress {
    let addresses = resolve(master, deadline, &Cancel::NEVER).unwrap_or_default();
    let mut ips: Vec<IpAddr> = addresses.iter().map(|it| it.ip().to_canonical()).collect();
    if resolve_local(master, deadline, &Cancel::NEVER).is_ok_and(|local| !local.is_empty()) {
        ips.extend([
            IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        ]);
    }
    StoreAddress {
        ips,
        port: master.port(),
        seen_as: None,
    }
}
