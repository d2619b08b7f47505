//! The connection on which announcements travel.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::agent::StartedWorkers;
use c10d_socket::{
    Backoff, BackoffOptions, Cancel, Credentials, Deadline, HostPort, own_address_towards, resolve,
    resolve_local,
};
use c10d_store::{StoreAddress as Address, TcpStore, TcpStoreOptions};

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

/// Sends announcements to one store: the current round's workers' store, or the rendezvous' store.
#[derive(Debug)]
pub(super) struct Link {
    store: Option<TcpStore>,
    /// Ends lookups, connecting and calls: the owner is ending.
    cancel: Cancel,
    /// `None` if the workers' store is not served by an agent.
    target: Option<Address>,
    /// The credentials that the store requires.
    credentials: Option<Credentials>,
    /// The address at which workers reach the store.
    reached_at: Option<HostPort>,
    address: Option<StoreAddress>,
    is_unsupported: bool,
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl Link {
    pub(super) fn new(cancel: Cancel) -> Self {
        Self {
            store: None,
            cancel,
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
    pub(super) fn to(store: HostPort, credentials: Option<Credentials>, cancel: Cancel) -> Self {
        Self {
            target: Some(store.into()),
            credentials,
            ..Self::new(cancel)
        }
    }

    /// Ends the connection. The next announcement makes a new one.
    pub(super) fn close(&mut self) {
        self.store = None;
    }

    /// Sends to the store of these workers from now on.
    pub(super) fn aim(&mut self, started: &StartedWorkers) {
        let master = &started.master;
        // A worker that serves the store does so with PyTorch's server, and later.
        let target = started.is_agent_store.then(|| started.address.clone());
        let reached_at = started.relay.as_ref().unwrap_or(master);
        if self.target == target && self.reached_at.as_ref() == Some(reached_at) {
            return;
        }
        self.store = None;
        let deadline = Deadline::after(Instant::now(), TIMEOUT);
        let mut address = address_of(reached_at, deadline, &self.cancel);
        if started.relay.is_some() {
            address.seen_as = seen_by(master, deadline, &self.cancel);
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
        self.store.is_some()
    }

    /// Waits until the server has taken the announcements so far, for at most 1 s.
    pub(super) fn confirm(&self) {
        if let Some(store) = &self.store {
            // The next announcement detects a lost connection.
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
                self.store = None;
            }
            Err(error) => {
                log::debug!("cannot announce the workers of this node: {error}");
                self.store = None;
                self.not_before = Some(Instant::now() + self.backoff.next_delay());
            }
        }
    }

    fn try_send(
        &mut self,
        target: &Address,
        bytes: &[u8],
    ) -> Result<bool, Box<dyn Error + Send + Sync>> {
        if self.store.is_none() {
            let mut options = TcpStoreOptions::default()
                .with_timeout(TIMEOUT)
                .with_cancel(self.cancel.clone());
            if let Some(credentials) = &self.credentials {
                options = options.with_credentials(credentials.clone());
            }
            let deadline = Deadline::after(Instant::now(), TIMEOUT);
            let target = target.current(deadline, &self.cancel)?;
            let store = TcpStore::open(target.host(), target.port(), options)?;
            self.store = Some(store);
        }
        match &self.store {
            Some(store) => Ok(store.announce(bytes)?),
            None => Ok(false),
        }
    }
}

/// The address of this machine from the store's side; `None` if it is unknown.
fn seen_by(master: &HostPort, deadline: Deadline, cancel: &Cancel) -> Option<IpAddr> {
    let addresses = resolve(master, deadline, cancel).ok()?;
    own_address_towards(*addresses.first()?).ok()
}

/// The addresses at which workers reach the store. A store on this machine is also reached by loopback.
fn address_of(master: &HostPort, deadline: Deadline, cancel: &Cancel) -> StoreAddress {
    let addresses = resolve(master, deadline, cancel).unwrap_or_default();
    let mut ips: Vec<IpAddr> = addresses.iter().map(|it| it.ip().to_canonical()).collect();
    if resolve_local(master, deadline, cancel).is_ok_and(|local| !local.is_empty()) {
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use c10d_store::StoreError;

    use super::*;

    #[test]
    fn the_owner_ends_connecting_to_a_silent_store() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = HostPort::new("127.0.0.1", silent.local_addr().unwrap().port());
        let cancel = Cancel::new();
        let mut link = Link::to(store.clone(), None, cancel.clone());
        let sending = thread::spawn(move || link.try_send(&store.into(), b"{}"));
        let connected = silent.accept().unwrap();
        cancel.cancel();
        let error = sending.join().unwrap().unwrap_err();
        let interrupted = error.downcast_ref::<StoreError>();
        assert!(
            matches!(interrupted, Some(StoreError::Interrupted { .. })),
            "{error}"
        );
        drop(connected);
    }

    #[test]
    fn the_owner_ends_lookups() {
        let cancel = Cancel::new();
        cancel.cancel();
        let named = HostPort::new("localhost", 1);
        let address = address_of(&named, Deadline::NEVER, &cancel);
        assert_eq!(address.ips, Vec::<IpAddr>::new());
        assert_eq!(seen_by(&named, Deadline::NEVER, &cancel), None);
    }
}
