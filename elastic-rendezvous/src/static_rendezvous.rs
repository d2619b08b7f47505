//! The rendezvous of a job whose nodes are known beforehand: each is told its rank.
//!
//! One round, no comings and goings: nodes only meet at a store.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::{Deadline, HostPort};
use c10d_store::{
    ErrorContext, Operation, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions,
};

use crate::endpoint::Endpoint;
use crate::error::RendezvousError;
use crate::handler::{
    BootstrapInfo, Listener, Membership, RendezvousEvent, RendezvousHandler, RendezvousInfo,
};
use crate::node::NodeId;
use crate::parameters::{ParametersError, RendezvousParameters};
use crate::ranks_report::RanksReport;
use crate::this_host;

/// The name under which this rendezvous is registered.
pub const STATIC_BACKEND: &str = "static";

/// How long all nodes together may take to come, without a `timeout` setting. The launcher sets 900.
const TIMEOUT: Duration = Duration::from_secs(600);

const THREAD: &str = "rendezvous-static";
const SLICE: Duration = Duration::from_millis(100);

/// How often listeners are told, and unknown names looked up.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// When the log has its first line about a wait; after that when it has lasted twice as long, and at
/// least each minute.
const FIRST_LOG_AFTER: Duration = Duration::from_secs(5);
const LOG_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// How often nodes are counted: by the host always after the first, as in PyTorch, by the others ever
/// more rarely.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The most names that are looked up at a time, and the longest one that is read.
const NAMES_ASKED_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 1024;

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
    listeners: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners(Vec<Listener>);

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}

/// What the listeners and the log were last told.
#[derive(Debug)]
struct Told {
    present: (usize, usize),
    next_event_at: Duration,
    next_log_at: Duration,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            present: (0, 0),
            next_event_at: EVENT_INTERVAL,
            next_log_at: FIRST_LOG_AFTER,
        }
    }
}

/// What the thread on which the nodes meet has to say.
#[derive(Debug)]
enum Progress {
    /// The port of the store, how many nodes have joined, and the names of those that have one.
    Joined {
        port: u16,
        joined: usize,
        named: BTreeMap<usize, NodeId>,
    },
    Met(Arc<TcpStore>),
    Failed(StoreError),
}

/// The nodes at the store, as one of them sees them.
#[derive(Debug)]
struct Meeting {
    target: HostPort,
    run_id: String,
    rank: usize,
    world_size: usize,
    timeout: Duration,
    named: BTreeMap<usize, NodeId>,
    to_owner: Sender<Progress>,
}

impl Meeting {
    fn run(mut self) {
        let end = match self.meet() {
            Ok(Some(store)) => Progress::Met(Arc::new(store)),
            Ok(None) => return,
            Err(error) => Progress::Failed(error),
        };
        // Nobody may be waiting any more.
        let _ = self.to_owner.send(end);
    }

    /// `None` when nobody waits any more.
    fn meet(&mut self) -> Result<Option<TcpStore>, StoreError> {
        let options = TcpStoreOptions::default()
            .with_master(self.rank == 0)
            .with_multi_tenant(true)
            .with_timeout(self.timeout);
        let store = TcpStore::open(self.target.host(), self.target.port(), options)?;
        if self.rank == 0 {
            let (host, port) = (self.target.host(), store.port());
            log::info!("this process hosts the rendezvous store at {host}:{port}");
        }
        let names = PrefixStore::new(self.run_id.clone(), store.clone_store()?);
        let name = format!("{} {}", std::process::id(), this_host::full_name());
        names.set(&name_key(self.rank), name.as_bytes())?;
        // As PyTorch's nodes do, of which the host waits for all.
        store.count_worker()?;
        let mut pause = POLL_INTERVAL_MIN;
        let mut next_names_at = Instant::now();
        loop {
            let joined = usize::try_from(store.worker_count()?).unwrap_or(0);
            if joined >= self.world_size {
                return Ok(Some(store));
            }
            let now = Instant::now();
            if now >= next_names_at {
                next_names_at = now + EVENT_INTERVAL;
                self.read_names(&names)?;
            }
            let progress = Progress::Joined {
                port: store.port(),
                joined,
                named: self.named.clone(),
            };
            if self.to_owner.send(progress).is_err() {
                return Ok(None);
            }
            std::thread::sleep(pause);
            if self.rank != 0 {
                // Its server would have to answer all the others.
                pause = (pause * 2).min(POLL_INTERVAL_MAX);
            }
        }
    }

    fn read_names(&mut self, names: &dyn Store) -> Result<(), StoreError> {
        let unknown: Vec<usize> = (0..self.world_size)
            .filter(|rank| !self.named.contains_key(rank))
            .take(NAMES_ASKED_MAX)
            .collect();
        for rank in unknown {
            let key = name_key(rank);
            if !names.check(&[&key])? {
                continue;
            }
            let name = names.get(&key)?;
            let name = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES_MAX)]);
            let (pid, host) = name.split_once(' ').unwrap_or(("", &name));
            let node = NodeId::new(host, pid.parse().unwrap_or(0), 0);
            self.named.insert(rank, node);
        }
        Ok(())
    }
}

/// Where a node of ours writes its name, below the run id. PyTorch's nodes neither write nor read it.
fn name_key(rank: usize) -> String {
    format!("c10d/static/{rank}")
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
            listeners: Mutex::default(),
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

    /// The nodes meet on a thread of its own, as nothing can interrupt a call of the store. When it is
    /// interrupted or too late the thread is left behind; it ends with the call that it is in, each of
    /// which has the timeout, and with the store that it may have opened.
    fn meet(&self) -> Result<Arc<TcpStore>, RendezvousError> {
        let (sender, progress) = channel();
        let meeting = Meeting {
            target: self.target.clone(),
            run_id: self.run_id.clone(),
            rank: self.rank,
            world_size: self.world_size,
            timeout: self.timeout,
            named: BTreeMap::new(),
            to_owner: sender,
        };
        std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || meeting.run())
            .map_err(|source| RendezvousError::Thread {
                name: THREAD,
                source,
            })?;
        self.await_met(&progress, Instant::now())
    }

    fn await_met(
        &self,
        progress: &Receiver<Progress>,
        started: Instant,
    ) -> Result<Arc<TcpStore>, RendezvousError> {
        let failed = |error: StoreError| RendezvousError::connection(&self.run_id, error);
        let deadline = Deadline::after(started, self.timeout);
        let mut report = self.first_report();
        let mut told = Told::default();
        loop {
            match progress.recv_timeout(SLICE) {
                Ok(Progress::Met(store)) => return Ok(store),
                Ok(Progress::Failed(error)) => return Err(failed(error)),
                Ok(Progress::Joined {
                    port,
                    joined,
                    named,
                }) => {
                    report.is_connected = true;
                    report.endpoint = HostPort::new(self.target.host(), port);
                    report.joined = joined;
                    report.named = named;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RendezvousError::Thread {
                        name: THREAD,
                        source: io::Error::other("it panicked"),
                    });
                }
            }
            if self.is_interrupted.load(Ordering::Acquire) {
                return Err(self.interrupted());
            }
            let now = Instant::now();
            report.waited = now.saturating_duration_since(started);
            report.time_left = self.timeout.saturating_sub(report.waited);
            if deadline.has_passed(now) && report.is_connected {
                let report = Box::new(report);
                return Err(RendezvousError::RanksMissing { report });
            }
            if report.waited > self.timeout.saturating_add(GRACE) {
                // A server that was slow to greet this node, and then fell silent.
                return Err(failed(self.no_reply(report.waited)));
            }
            self.tell(&report, &mut told);
        }
    }

    fn first_report(&self) -> RanksReport {
        RanksReport {
            run_id: self.run_id.clone(),
            endpoint: self.target.clone(),
            rank: self.rank,
            world_size: self.world_size,
            is_connected: false,
            joined: 0,
            named: BTreeMap::new(),
            waited: Duration::ZERO,
            time_left: self.timeout,
        }
    }

    /// Tells the listeners about once a second and at each change, the log ever more rarely.
    fn tell(&self, report: &RanksReport, told: &mut Told) {
        let present = (report.joined, report.named.len());
        let is_time = report.waited >= told.next_event_at;
        if std::mem::replace(&mut told.present, present) == present && !is_time {
            return;
        }
        told.next_event_at = report.waited + EVENT_INTERVAL;
        if report.waited >= told.next_log_at {
            log::info!(
                "waiting for {} s, at most {} s more: {report}",
                report.waited.as_secs(),
                report.time_left.as_secs(),
            );
            told.next_log_at = report.waited + report.waited.min(LOG_INTERVAL_MAX);
        }
        self.tell_listeners(&RendezvousEvent::WaitingForRanks(report));
    }

    fn tell_listeners(&self, event: &RendezvousEvent<'_>) {
        let listeners = self.listeners.lock();
        let listeners = listeners.unwrap_or_else(PoisonError::into_inner).0.clone();
        for listener in listeners {
            listener(event);
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
                let store = self.meet()?;
                *self.store.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&store));
                self.tell_listeners(&RendezvousEvent::MembershipChanged);
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

    fn add_listener(&self, listener: Listener) {
        let listeners = self.listeners.lock();
        listeners
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .push(listener);
    }

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
        let error = node().await_met(&opened, long_ago()).unwrap_err();
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
        let error = node.await_met(&opened, Instant::now()).unwrap_err();
        assert!(
            matches!(error, RendezvousError::Interrupted { .. }),
            "{error}"
        );
    }
}
