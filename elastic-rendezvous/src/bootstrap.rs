//! The store that the workers of a round use, and how the nodes agree on its address.
//!
//! PyTorch's agents publish it once, in the round in which they first serve it, and never read it
//! again: a node that comes later waits for it in vain, and one that comes later and gets rank 0
//! splits the world (docs/rendezvous.md, "The workers' store"). Here it is published in every round,
//! stays the same while its server is there, and is found by whoever came late.
//!
//! Knows nothing about how a round came about. Decides by what stands in the store, not by clocks, but
//! for one grace period towards PyTorch's nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Deadline, HostPort};
use c10d_store::{ListenOn, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions};

use crate::error::RendezvousError;
use crate::handler::BootstrapInfo;
use crate::node::NodeId;

const ADDR_KEY: &str = "MASTER_ADDR";
const PORT_KEY: &str = "MASTER_PORT";

/// A PyTorch node with rank 0 that publishes at all may notice a second late that the round is
/// complete, and then has its server to start.
const GRACE: Duration = Duration::from_secs(3);

/// How long one wait lasts before it is asked whether to give up.
const SLICE: Duration = Duration::from_secs(1);

/// So many earlier rounds are searched for an address.
const EARLIER_ROUNDS_MAX: i64 = 64;

/// How long an address from an earlier round has to answer before another is chosen.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the start of our own server may take.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest address that is taken over from others.
const ADDR_BYTES_MAX: usize = 1024;

/// A complete round, as far as it matters here.
#[derive(Debug)]
pub(crate) struct Round<'r> {
    /// The rendezvous' store, without a prefix.
    pub(crate) store: &'r Arc<dyn Store>,
    pub(crate) run_id: &'r str,
    pub(crate) number: i64,
    pub(crate) rank: usize,
    /// The nodes in the order of their ranks.
    pub(crate) nodes: &'r [NodeId],
    /// The host under which the others reach this node.
    pub(crate) own_host: &'r str,
}

/// Why no address was found.
#[derive(Debug)]
pub(crate) enum NotFound {
    Interrupted,
    /// Nobody published one in time.
    Missing,
    Failed(RendezvousError),
}

impl From<RendezvousError> for NotFound {
    fn from(error: RendezvousError) -> Self {
        Self::Failed(error)
    }
}

/// What a node keeps from round to round.
#[derive(Debug, Default)]
pub(crate) struct Bootstrap {
    /// The server that this node runs for the workers, started when it is first needed.
    own: Option<TcpStore>,
    last: Option<LastRound>,
}

#[derive(Debug)]
struct LastRound {
    master: HostPort,
    nodes: BTreeSet<NodeId>,
    first: NodeId,
}

impl Round<'_> {
    /// The part of the store that belongs to a round.
    pub(crate) fn prefix(&self, number: i64) -> PrefixStore<Arc<dyn Store>> {
        let prefix = format!("torch.rendezvous.{}.{number}", self.run_id);
        PrefixStore::new(prefix, Arc::clone(self.store))
    }

    fn failed(&self, error: StoreError) -> RendezvousError {
        RendezvousError::connection(self.run_id, error)
    }

    /// The address that is published for a round, if one is.
    fn published(&self, number: i64) -> Result<Option<HostPort>, RendezvousError> {
        // PyTorch writes the port last.
        let is_there = self
            .prefix(number)
            .check(&[PORT_KEY, ADDR_KEY])
            .map_err(|error| self.failed(error))?;
        is_there.then(|| self.read_published(number)).transpose()
    }

    /// The address that is published for a round, where it is known to be.
    fn read_published(&self, number: i64) -> Result<HostPort, RendezvousError> {
        let store = self.prefix(number);
        let values = store
            .multi_get(&[ADDR_KEY, PORT_KEY])
            .map_err(|error| self.failed(error))?;
        let text = |index: usize| {
            let value = values.get(index).map_or(&[][..], Vec::as_slice);
            String::from_utf8_lossy(&value[..value.len().min(ADDR_BYTES_MAX)]).into_owned()
        };
        let (addr, port) = (text(0), text(1));
        match port.parse::<u16>() {
            Ok(port) if port > 0 => Ok(HostPort::new(addr, port)),
            _ => Err(RendezvousError::BadBootstrap {
                store: self.store.label(),
                key: store.full_key(PORT_KEY),
                value: port,
            }),
        }
    }

    fn publish(&self, master: &HostPort) -> Result<(), RendezvousError> {
        let store = self.prefix(self.number);
        store
            .set(ADDR_KEY, master.host().as_bytes())
            .and_then(|()| store.set(PORT_KEY, master.port().to_string().as_bytes()))
            .map_err(|error| self.failed(error))
    }

    /// For nodes that wait for a rank 0 which will never publish. Never replaces what is there.
    fn publish_if_missing(&self, master: &HostPort) -> Result<(), RendezvousError> {
        let store = self.prefix(self.number);
        let port = master.port().to_string();
        store
            .compare_set(ADDR_KEY, b"", master.host().as_bytes())
            .and_then(|_| store.compare_set(PORT_KEY, b"", port.as_bytes()))
            .map(|_| ())
            .map_err(|error| self.failed(error))
    }

    /// The address of the newest earlier round that has one.
    fn published_earlier(&self) -> Result<Option<HostPort>, RendezvousError> {
        let oldest = self.number.saturating_sub(EARLIER_ROUNDS_MAX).max(0);
        for number in (oldest..self.number).rev() {
            if let Some(master) = self.published(number)? {
                return Ok(Some(master));
            }
        }
        Ok(None)
    }
}

impl Bootstrap {
    /// The workers' store for a round whose store is served by an agent. Blocks for at most `timeout`
    /// (and up to some seconds for the start of a server); `is_interrupted` is asked now and then.
    pub(crate) fn settle(
        &mut self,
        round: &Round<'_>,
        timeout: Duration,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<BootstrapInfo, NotFound> {
        let master = if round.rank == 0 {
            let master = self.choose(round)?;
            round.publish(&master)?;
            master
        } else {
            self.find(round, timeout, is_interrupted)?
        };
        if let Some(first) = round.nodes.first() {
            self.last = Some(LastRound {
                master: master.clone(),
                nodes: round.nodes.iter().cloned().collect(),
                first: first.clone(),
            });
        }
        Ok(BootstrapInfo::new(master, true, true))
    }

    /// A fresh address for each round, at which the worker with rank 0 will serve: what PyTorch does
    /// when agents are told to share no store.
    pub(crate) fn settle_unshared(
        round: &Round<'_>,
        timeout: Duration,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<BootstrapInfo, NotFound> {
        let master = if round.rank == 0 {
            let port = free_port(round)?;
            let master = HostPort::new(round.own_host, port);
            round.publish(&master)?;
            master
        } else {
            let deadline = Deadline::after(Instant::now(), timeout);
            await_published(round, deadline, is_interrupted)?.ok_or(NotFound::Missing)?
        };
        Ok(BootstrapInfo::new(master, false, false))
    }

    /// Rank 0's choice: the address that members may have kept from before, if its server still
    /// answers; otherwise our own.
    fn choose(&mut self, round: &Round<'_>) -> Result<HostPort, RendezvousError> {
        let own = |store: &TcpStore| HostPort::new(round.own_host, store.port());
        let before = match &self.last {
            Some(last) => Some(last.master.clone()),
            None if round.number > 0 => round.published_earlier()?,
            None => None,
        };
        if let Some(before) = before {
            match &self.own {
                Some(store) if own(store) == before => return Ok(before),
                _ => {}
            }
            match probe(&before) {
                Ok(()) => return Ok(before),
                Err(error) => log::info!(
                    "the workers' store of an earlier round is gone, starting another: {error}"
                ),
            }
        }
        if let Some(store) = &self.own {
            return Ok(own(store));
        }
        let options = TcpStoreOptions::default()
            .with_master(true)
            .with_multi_tenant(true)
            .with_timeout(SERVE_TIMEOUT)
            .with_listen_on(ListenOn::Host);
        let store =
            TcpStore::open(round.own_host, 0, options).map_err(|error| round.failed(error))?;
        let master = own(&store);
        self.own = Some(store);
        Ok(master)
    }

    fn find(
        &self,
        round: &Round<'_>,
        timeout: Duration,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<HostPort, NotFound> {
        let deadline = Deadline::after(Instant::now(), timeout);
        // Nobody has come, and the same node has rank 0: the address is the same too, and a PyTorch
        // node would not publish it again.
        if let Some(last) = &self.last
            && round.nodes.first() == Some(&last.first)
            && round.nodes.iter().all(|node| last.nodes.contains(node))
        {
            return Ok(last.master.clone());
        }
        let grace = Deadline::after(Instant::now(), GRACE).min(deadline);
        if let Some(master) = await_published(round, grace, is_interrupted)? {
            return Ok(master);
        }
        let before = match &self.last {
            Some(last) => Some(last.master.clone()),
            None => round.published_earlier()?,
        };
        if let Some(before) = before {
            log::info!(
                "rank 0 of round {} has not published the workers' store: using {before}, as in an \
                 earlier round",
                round.number,
            );
            round.publish_if_missing(&before)?;
        }
        await_published(round, deadline, is_interrupted)?.ok_or(NotFound::Missing)
    }
}

/// Empties a store that holds nothing but what workers have put there. What they have left from
/// before a restart would mislead the next ones.
///
/// To be called when all workers of the last round have ended and none of the next can have begun:
/// before this node's part of the exchange of ranks. A failure is logged: a store that cannot be
/// emptied is as PyTorch leaves it. Blocks for some seconds at most.
pub fn clear_workers_store(bootstrap: &BootstrapInfo) {
    if !bootstrap.is_workers_own {
        return;
    }
    let cleared = || -> Result<usize, StoreError> {
        let store = open(&bootstrap.master, PROBE_TIMEOUT)?;
        let keys = store.list_keys()?;
        for key in &keys {
            store.delete_key(key)?;
        }
        Ok(keys.len())
    };
    match cleared() {
        Ok(0) => {}
        Ok(count) => log::debug!("removed {count} keys from the workers' store"),
        Err(error) => log::debug!("cannot empty the workers' store: {error}"),
    }
}

fn open(target: &HostPort, timeout: Duration) -> Result<TcpStore, StoreError> {
    let options = TcpStoreOptions::default().with_timeout(timeout);
    TcpStore::open(target.host(), target.port(), options)
}

fn probe(target: &HostPort) -> Result<(), StoreError> {
    open(target, PROBE_TIMEOUT).map(drop)
}

fn await_published(
    round: &Round<'_>,
    deadline: Deadline,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<Option<HostPort>, NotFound> {
    let store = round.prefix(round.number);
    loop {
        if is_interrupted() {
            return Err(NotFound::Interrupted);
        }
        let left = deadline.remaining(Instant::now()).unwrap_or(SLICE);
        match store.wait_timeout(&[PORT_KEY, ADDR_KEY], Some(left.min(SLICE))) {
            Ok(()) => return Ok(Some(round.read_published(round.number)?)),
            // A busy server may be late with its answer that the time is up.
            Err(StoreError::Timeout { .. } | StoreError::NoReply { .. }) if left > SLICE => {}
            Err(StoreError::Timeout { .. }) => return Ok(None),
            Err(error) => return Err(round.failed(error).into()),
        }
    }
}

/// A port that was free a moment ago, on all interfaces.
fn free_port(round: &Round<'_>) -> Result<u16, RendezvousError> {
    let listener = c10d_socket::listen(&c10d_socket::ListenOptions::default())
        .map_err(|error| round.failed(error.into()))?;
    let address = listener
        .first()
        .and_then(|listener| listener.local_addr().ok());
    Ok(address.map_or(0, |address| address.port()))
}
