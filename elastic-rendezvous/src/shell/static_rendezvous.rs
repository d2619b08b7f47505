//! The static rendezvous: each node is given its rank, and all meet once at a store.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use c10d_socket::{
    Backoff, BackoffOptions, Cancel, Deadline, DialStage, HostPort, printable, sleep,
};
use c10d_store::{
    Credentials, ErrorContext, ListenOn, Operation, PrefixStore, ServerOptions, Store, StoreError,
    StoreExt, StoreHandle as _, TcpStore, TcpStoreOptions,
};

use crate::shell::bootstrap::protected;
use crate::shell::handler::{
    BootstrapInfo, Listener, RendezvousEvent, RendezvousHandler, RendezvousInfo,
};
use crate::shell::keeping;
use crate::shell::listener_watch::{ListenerWatch, has_many_keys, runs_at};
use crate::shell::own_host::given_addresses;
use crate::shell::reconnecting::{ReconnectingStore, connect_to};
use crate::shell::shared::WAIT_CHARS_MAX;
use crate::shell::this_host;
use crate::shell::workers_keys::STATIC_NAMES;
use crate::values::endpoint::Endpoint;
use crate::values::error::{RendezvousError, is_outage};
use crate::values::membership::Membership;
use crate::values::node::NodeId;
use crate::values::parameters::RendezvousParameters;
use crate::values::parameters_error::ParametersError;
use crate::values::ranks_report::RanksReport;
use crate::values::server_hook::ServerHook;
use crate::values::store_route::StoreRoute;

/// The name under which this rendezvous is registered.
pub const STATIC_BACKEND: &str = "static";

/// How long all nodes may take to join, without a `timeout` setting. The command `c10d run` sets 900 s, as torchrun.
pub const STATIC_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a request is repeated while the store does not answer: as long as with the dynamic rendezvous.
const PATIENCE: Duration = Duration::from_secs(15);

const THREAD: &str = "rendezvous-static";
const WATCH_THREAD: &str = "static-closed";

/// The key that our nodes set to close the rendezvous, below the run id.
const CLOSED: &str = "c10d/static/closed";

/// Whether the nodes keep the workers that survive another worker, below the run id.
const KEEP: &str = "c10d/static/keep";

/// The pause before a node waits for the closing again, after an error of the store.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// How often listeners get a report and missing names are read.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// When a wait is first logged. The interval then doubles, up to a minute.
const FIRST_LOG_AFTER: Duration = Duration::from_secs(5);
const LOG_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// How often the count of nodes is read: by the host always after the first interval, as in PyTorch, and by
/// the other nodes after intervals that double.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// How many names are read at a time, and the longest name.
const NAMES_ASKED_MAX: usize = 64;

/// In a larger world only the host reads the names: the requests of all nodes would grow with the square of
/// their number.
const NAMED_WORLD_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 1024;

/// How long one attempt to open the store may take. A store that refuses connections is tried more often.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// The pauses between two attempts to open the store. Something else may listen at the endpoint for hours.
fn pauses() -> BackoffOptions {
    BackoffOptions::default()
        .with_first(Duration::from_millis(500))
        .with_factor(2.0)
        .with_max(Duration::from_secs(5))
}

/// Whether nothing listens at the endpoint, or this node could not listen there. A new attempt then costs no other process.
fn is_unanswered(error: &StoreError) -> bool {
    match error {
        StoreError::Listen(_) => true,
        StoreError::Connect { source, .. } => {
            let last = source.failures().last();
            last.is_none_or(|it| !matches!(it.stage(), DialStage::Handshake(_)))
        }
        _ => false,
    }
}

/// How long a store that is being opened may exceed the timeout to report its own error, which includes questions to the listener.
const GRACE: Duration = Duration::from_secs(10);

/// A node of a rendezvous in which each node is given its rank.
///
/// Rank 0 hosts the store at the endpoint, the other nodes connect to it, and all nodes wait until every node has
/// joined. The number of nodes is the parameters' maximum. In PyTorch: `StaticTCPRendezvous`
/// (`torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py`).
#[derive(Debug)]
pub struct StaticRendezvous {
    run_id: String,
    target: HostPort,
    rank: usize,
    world_size: usize,
    timeout: Duration,
    server_hook: Option<ServerHook>,
    credentials: Option<Credentials>,
    server_options: ServerOptions,
    local_addr: Option<String>,
    met: Mutex<Option<Met>>,
    /// Of this and all later joins.
    cancel: Cancel,
    shared: Arc<Shared>,
    watch: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the handler shares with the thread that waits for the closing.
#[derive(Debug)]
struct Shared {
    listeners: Mutex<Listeners>,
    is_closed: AtomicBool,
    /// Ends the wait.
    detached: Cancel,
}

impl Shared {
    fn notify(&self, event: &RendezvousEvent<'_>) {
        let listeners = self.listeners.lock();
        let listeners = listeners.unwrap_or_else(PoisonError::into_inner).0.clone();
        for listener in listeners {
            listener(event);
        }
    }

    /// Waits until a node closes the rendezvous.
    fn watch(&self, store: &dyn Store) {
        loop {
            match store.wait_all(&[CLOSED], Some(Duration::MAX)) {
                Ok(()) => break,
                // The store may have ended with the job.
                Err(error) => log::debug!("cannot wait until the rendezvous is closed: {error}"),
            }
            if sleep(WATCH_PAUSE, [&self.detached]).is_err() {
                return;
            }
        }
        self.is_closed.store(true, Ordering::Release);
        self.notify(&RendezvousEvent::MembershipChanged);
    }
}

/// The store at which all nodes have met.
#[derive(Debug, Clone)]
struct Met {
    store: Arc<dyn Store>,
    port: u16,
    route: StoreRoute,
    /// Keeps the server, if this process has it.
    hosted: Option<Arc<TcpStore>>,
}

#[derive(Default)]
struct Listeners(Vec<Listener>);

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}

/// The last report to the listeners and the log.
#[derive(Debug)]
struct Reported {
    /// The numbers of joined and named nodes.
    counts: (usize, usize),
    next_event_at: Duration,
    next_log_at: Duration,
}

impl Default for Reported {
    fn default() -> Self {
        Self {
            counts: (0, 0),
            next_event_at: EVENT_INTERVAL,
            next_log_at: FIRST_LOG_AFTER,
        }
    }
}

/// A message of the thread that joins.
#[derive(Debug)]
enum Progress {
    /// The port of the store, how many nodes have joined, and the known names.
    Joined {
        port: u16,
        joined: usize,
        named: BTreeMap<usize, NodeId>,
    },
    AllJoined(Met),
    Failed(RendezvousError),
}

/// The join of one node, on its own thread.
#[derive(Debug)]
struct Meeting {
    target: HostPort,
    run_id: String,
    rank: usize,
    world_size: usize,
    timeout: Duration,
    server_hook: Option<ServerHook>,
    credentials: Option<Credentials>,
    server_options: ServerOptions,
    local_addr: Option<String>,
    cancel: Cancel,
    named: BTreeMap<usize, NodeId>,
    /// The rank whose name is asked next.
    next_name: usize,
    to_owner: Sender<Progress>,
}

impl Meeting {
    fn run(mut self) {
        let run_id = self.run_id.clone();
        let failed = |error| RendezvousError::connection(&run_id, error);
        let end = match (self.open()).and_then(|store| self.meet(store).map_err(failed)) {
            Ok(Some(met)) => Progress::AllJoined(met),
            Ok(None) => return,
            Err(error) => Progress::Failed(error),
        };
        // The owner may no longer wait.
        let _ = self.to_owner.send(end);
    }

    /// Serves the store, or connects to it, as soon as nothing else listens at the endpoint.
    fn open(&self) -> Result<TcpStore, RendezvousError> {
        let started = Instant::now();
        let deadline = Deadline::after(started, self.timeout);
        let credentials = self.credentials.as_ref();
        let mut watch = ListenerWatch::new(&self.target, credentials, &self.run_id, &self.cancel);
        let mut attempt_timeout = FIRST_ATTEMPT_TIMEOUT;
        let mut backoff = Backoff::new(pauses(), fastrand::u64(..));
        loop {
            let left = deadline.remaining(Instant::now()).unwrap_or(Duration::MAX);
            let error = match self.try_open(left.min(attempt_timeout)) {
                Ok(store) if !self.is_foreign(&store) => return Ok(store),
                Ok(_) => self.no_reply(started.elapsed()),
                Err(error) => error,
            };
            let left = deadline.remaining(Instant::now()).unwrap_or(Duration::MAX);
            if left.is_zero() || !self.may_become_free(&error) {
                let error = match error {
                    StoreError::Connect { context, source } => StoreError::Connect {
                        context,
                        source: source.with_total(started.elapsed(), self.timeout),
                    },
                    error => error,
                };
                return Err(watch.error(RendezvousError::connection(&self.run_id, error)));
            }
            watch.on_failure(deadline);
            attempt_timeout = ATTEMPT_TIMEOUT;
            if is_unanswered(&error) {
                backoff = Backoff::new(pauses(), fastrand::u64(..));
            }
            if sleep(left.min(backoff.next_delay()), [&self.cancel]).is_err() {
                return Err(RendezvousError::Interrupted {
                    run_id: self.run_id.clone(),
                });
            }
        }
    }

    fn try_open(&self, timeout: Duration) -> Result<TcpStore, StoreError> {
        let mut options = TcpStoreOptions::default();
        if let Some(credentials) = &self.credentials {
            options = options.with_credentials(credentials.clone());
        }
        // The workers use the same store.
        let server_options = protected(self.server_options.clone(), self.credentials.as_ref());
        let is_host = self.rank == 0;
        let local_addr = self.local_addr.as_deref().filter(|_| is_host);
        let options = options
            .with_server_options(server_options)
            .with_master(is_host)
            .with_multi_tenant(true)
            .with_listen_on(ListenOn::HostIfKnown)
            .with_listen_also_on(given_addresses(local_addr))
            .with_timeout(timeout)
            .with_cancel(self.cancel.clone());
        let store = TcpStore::open(self.target.host(), self.target.port(), options)?;
        store.set_timeout(Some(self.timeout));
        Ok(store)
    }

    /// Whether a later attempt may succeed after this failure: the store may start later, and what else listens at the endpoint
    /// may end. The only node of a job waits for no other node.
    fn may_become_free(&self, error: &StoreError) -> bool {
        match error {
            StoreError::Listen(error) => error.is_address_in_use() && self.world_size > 1,
            StoreError::Protocol { .. } => self.credentials.is_none(),
            error => is_outage(error),
        }
    }

    /// Whether the store belongs to another job or to an earlier start of this job: another process has this node's
    /// rank there, or node rank 0 has not joined there, but nodes of another job have, or all nodes, or it has many keys.
    fn is_foreign(&self, store: &TcpStore) -> bool {
        if self.rank == 0 {
            return false;
        }
        let names = PrefixStore::new(
            self.run_id.clone(),
            Arc::new(store.with_cancel(&self.cancel)),
        );
        match names.try_get(&name_key(self.rank)) {
            Ok(Some(name)) => return name != self.name().as_bytes(),
            Ok(None) => {}
            // The next request fails for the same reason.
            Err(_) => return false,
        }
        if names.check(&[&name_key(0)]).unwrap_or(true) {
            return false;
        }
        // PyTorch's nodes write no names.
        let is_full = |joined: i64| usize::try_from(joined).is_ok_and(|it| it >= self.world_size);
        if has_many_keys(store).unwrap_or(false) || store.worker_count().is_ok_and(is_full) {
            return true;
        }
        let credentials = self.credentials.as_ref();
        let runs = runs_at(&self.target, credentials, &self.run_id, &self.cancel);
        runs.iter().any(|run| *run != self.run_id)
    }

    fn no_reply(&self, elapsed: Duration) -> StoreError {
        no_reply(&self.target, elapsed, self.timeout)
    }

    /// The value of the key of this node's name.
    fn name(&self) -> String {
        format!("{} {}", std::process::id(), this_host::full_name())
    }

    /// Returns `None` if the join was interrupted, or the owner no longer waits.
    fn meet(&mut self, connection: TcpStore) -> Result<Option<Met>, StoreError> {
        let port = connection.port();
        let endpoint = HostPort::new(self.target.host(), port);
        let route = StoreRoute::new(endpoint, connection.connection_ends());
        if self.rank == 0 {
            let host = self.target.host();
            log::debug!("this process hosts the rendezvous store at {host}:{port}");
        }
        if let (Some(hook), Some(server)) = (&self.server_hook, connection.server()) {
            hook.call(server);
        }
        let hosted = connection
            .server()
            .map(|_| Arc::new(connection.with_cancel(&Cancel::NEVER)));
        let first = Arc::new(connection.with_cancel(&self.cancel));
        let name = self.name();
        PrefixStore::new(self.run_id.clone(), first).set(&name_key(self.rank), name.as_bytes())?;
        // As PyTorch's nodes do; the host waits for this count.
        connection.count_worker()?;
        let connect = Arc::new(connect_to(
            self.target.clone().into(),
            hosted.as_deref(),
            self.credentials.clone(),
        ));
        let store: Arc<dyn Store> = Arc::new(ReconnectingStore::of_connections(
            Arc::new(connection.with_cancel(&Cancel::NEVER)),
            Arc::clone(&connect),
            PATIENCE,
        ));
        let names = PrefixStore::new(self.run_id.clone(), store.with_cancel(&self.cancel));
        let mut count = Count {
            connection,
            connect: &*connect,
            answered_at: Instant::now(),
        };
        let mut pause = POLL_INTERVAL_MIN;
        let mut next_names_at = Instant::now();
        loop {
            let joined = usize::try_from(count.read(&self.cancel)?).unwrap_or(0);
            if joined >= self.world_size {
                return Ok(Some(Met {
                    store,
                    port,
                    route,
                    hosted,
                }));
            }
            let now = Instant::now();
            if now >= next_names_at && reads_names(self.rank, self.world_size) {
                next_names_at = now + EVENT_INTERVAL;
                self.read_names(&names)?;
            }
            let progress = Progress::Joined {
                port,
                joined,
                named: self.named.clone(),
            };
            if self.to_owner.send(progress).is_err() {
                return Ok(None);
            }
            if sleep(pause, [&self.cancel]).is_err() {
                return Ok(None);
            }
            if self.rank != 0 {
                // The host's server must answer all other nodes.
                pause = (pause * 2).min(POLL_INTERVAL_MAX);
            }
        }
    }

    fn read_names(&mut self, names: &dyn Store) -> Result<(), StoreError> {
        // A long-missing rank does not hide the ranks above it.
        let from = self.next_name;
        let ranks = (from..self.world_size).chain(0..from);
        let unknown: Vec<usize> = ranks
            .filter(|rank| !self.named.contains_key(rank))
            .take(NAMES_ASKED_MAX)
            .collect();
        self.next_name = unknown.last().map_or(0, |rank| rank + 1);
        for rank in unknown {
            let Some(name) = names.try_get(&name_key(rank))? else {
                continue;
            };
            let name = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES_MAX)]);
            let (pid, host) = name.split_once(' ').unwrap_or(("", &name));
            let node = NodeId::new(host, pid.parse().unwrap_or(0), 0);
            self.named.insert(rank, node);
        }
        Ok(())
    }
}

/// Reads how many nodes have joined, over another connection if one is lost.
struct Count<'a> {
    connection: TcpStore,
    connect: &'a dyn Fn(Duration, &Cancel) -> Result<TcpStore, StoreError>,
    answered_at: Instant,
}

impl Count<'_> {
    /// Asks until there is an answer, or has been none for [`PATIENCE`].
    fn read(&mut self, cancel: &Cancel) -> Result<i64, StoreError> {
        let mut result = self.connection.worker_count();
        loop {
            let error = match result {
                Err(error) if is_outage(&error) => error,
                result => {
                    self.answered_at = Instant::now();
                    return result;
                }
            };
            let pause = POLL_INTERVAL_MAX;
            if self.answered_at.elapsed() >= PATIENCE || sleep(pause, [cancel]).is_err() {
                return Err(error);
            }
            result = (self.connect)(PATIENCE / 3, cancel).and_then(|connection| {
                self.connection = connection.with_cancel(cancel);
                self.connection.worker_count()
            });
        }
    }
}

/// Whether a node reads the names of the other nodes.
const fn reads_names(rank: usize, world_size: usize) -> bool {
    rank == 0 || world_size <= NAMED_WORLD_MAX
}

/// The key of a node's name, below the run id. PyTorch's nodes neither write nor read it.
fn name_key(rank: usize) -> String {
    // Below the run id, without the separator.
    format!("{}{rank}", &STATIC_NAMES[1..])
}

impl StaticRendezvous {
    /// Creates a node with the rank in the setting `rank`. Does not connect or block.
    ///
    /// # Errors
    /// [`RendezvousError::Parameters`] when the rank or the endpoint's port is missing or invalid, or several nodes
    /// have credentials without [relays](RendezvousParameters::with_relays).
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
        if parameters.credentials().is_some() && world_size > 1 && !parameters.has_relays() {
            let nodes = world_size;
            return Err(ParametersError::SecretForWorkers { nodes }.into());
        }
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
            timeout: parameters.get_as_duration("timeout", STATIC_TIMEOUT)?,
            server_hook: parameters.server_hook().cloned(),
            credentials: parameters.credentials().cloned(),
            server_options: parameters.server_options(),
            local_addr: parameters.local_addr().map(str::to_owned),
            met: Mutex::default(),
            cancel: Cancel::new(),
            shared: Arc::new(Shared {
                listeners: Mutex::default(),
                is_closed: AtomicBool::new(false),
                detached: Cancel::new(),
            }),
            watch: Mutex::default(),
        })
    }

    fn met(&self) -> MutexGuard<'_, Option<Met>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interrupted(&self) -> RendezvousError {
        RendezvousError::Interrupted {
            run_id: self.run_id.clone(),
        }
    }

    /// Joins on a separate thread, while this one reports. An interrupt ends what the thread waits for; after a timeout
    /// it ends with its current store call, which has the timeout too.
    fn meet(&self) -> Result<Met, RendezvousError> {
        let (sender, progress) = channel();
        let meeting = Meeting {
            target: self.target.clone(),
            run_id: self.run_id.clone(),
            rank: self.rank,
            world_size: self.world_size,
            timeout: self.timeout,
            server_hook: self.server_hook.clone(),
            credentials: self.credentials.clone(),
            server_options: self.server_options.clone(),
            local_addr: self.local_addr.clone(),
            cancel: self.cancel.clone(),
            named: BTreeMap::new(),
            next_name: 0,
            to_owner: sender,
        };
        std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || meeting.run())
            .map_err(|source| RendezvousError::Thread {
                name: THREAD,
                source,
            })?;
        self.await_all(&progress, Instant::now())
    }

    fn await_all(
        &self,
        progress: &Receiver<Progress>,
        started: Instant,
    ) -> Result<Met, RendezvousError> {
        let deadline = Deadline::after(started, self.timeout);
        let mut report = self.first_report();
        let mut reported = Reported::default();
        loop {
            let grace = if report.is_connected {
                Duration::ZERO
            } else {
                GRACE
            };
            let next = self
                .timeout
                .saturating_add(grace)
                .min(reported.next_event_at);
            let received = progress.recv_timeout(next.saturating_sub(started.elapsed()));
            // It also ends the thread.
            if self.cancel.is_cancelled() {
                return Err(self.interrupted());
            }
            match received {
                Ok(Progress::AllJoined(met)) => return Ok(met),
                Ok(Progress::Failed(error)) => return Err(error),
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
                        source: io::Error::other("the thread panicked"),
                    });
                }
            }
            let now = Instant::now();
            report.waited = now.saturating_duration_since(started);
            report.time_left = self.timeout.saturating_sub(report.waited);
            if deadline.has_passed(now) && report.is_connected {
                let report = Box::new(report);
                return Err(RendezvousError::RanksMissing { report });
            }
            if report.waited >= self.timeout.saturating_add(GRACE) {
                // The server accepted the connection and then stopped answering.
                let error = no_reply(&self.target, report.waited, self.timeout);
                return Err(RendezvousError::connection(&self.run_id, error));
            }
            self.report(&report, &mut reported);
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
            has_names: reads_names(self.rank, self.world_size),
            named: BTreeMap::new(),
            waited: Duration::ZERO,
            time_left: self.timeout,
        }
    }

    /// Reports to the listeners once a second and at each change, and to the log less often.
    fn report(&self, report: &RanksReport, reported: &mut Reported) {
        let counts = (report.joined, report.named.len());
        let is_time = report.waited >= reported.next_event_at;
        if std::mem::replace(&mut reported.counts, counts) == counts && !is_time {
            return;
        }
        reported.next_event_at = report.waited + EVENT_INTERVAL;
        if report.waited >= reported.next_log_at {
            log::info!(
                "waiting for other nodes for {} s, up to {} s more: {}",
                report.waited.as_secs(),
                report.time_left.as_secs(),
                printable(&report.in_brief(), WAIT_CHARS_MAX),
            );
            log::debug!("{report}");
            reported.next_log_at = report.waited + report.waited.min(LOG_INTERVAL_MAX);
        }
        self.shared
            .notify(&RendezvousEvent::WaitingForRanks(report));
    }

    /// The store below the run id.
    fn board(&self) -> Option<Arc<dyn Store>> {
        let store = Arc::clone(&self.met().as_ref()?.store);
        Some(Arc::new(PrefixStore::new(self.run_id.clone(), store)))
    }

    /// Starts a thread that notices when another node closes the rendezvous.
    fn watch_closing(&self) -> Result<(), RendezvousError> {
        let Some(store) = self.board().filter(|_| self.world_size > 1) else {
            return Ok(());
        };
        let shared = Arc::clone(&self.shared);
        let store = store.with_cancel(&shared.detached);
        let thread = std::thread::Builder::new()
            .name(WATCH_THREAD.to_owned())
            .spawn(move || shared.watch(&*store))
            .map_err(|source| RendezvousError::Thread {
                name: WATCH_THREAD,
                source,
            })?;
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    fn stop_watch(&self) {
        self.shared.detached.cancel();
        let watch = self.watch.lock();
        let thread = watch.unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread {WATCH_THREAD} panicked");
        }
    }
}

fn no_reply(target: &HostPort, elapsed: Duration, timeout: Duration) -> StoreError {
    let label = format!("TCP store {target}");
    StoreError::NoReply {
        context: ErrorContext::new(Operation::Open, [], label, elapsed),
        timeout,
    }
}

impl RendezvousHandler for StaticRendezvous {
    fn backend(&self) -> &str {
        STATIC_BACKEND
    }

    /// True: the workers use the store at the endpoint.
    fn has_store_per_round(&self) -> bool {
        false
    }

    fn has_agent_store(&self) -> bool {
        true
    }

    /// Returns the same round each time.
    fn next_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError> {
        if self.cancel.is_cancelled() {
            return Err(self.interrupted());
        }
        let known = self.met().clone();
        let met = match known {
            Some(met) => met,
            None => {
                let met = self.meet()?;
                *self.met() = Some(met.clone());
                self.watch_closing()?;
                self.shared.notify(&RendezvousEvent::MembershipChanged);
                met
            }
        };
        let master = HostPort::new(self.target.host(), met.port);
        // Processes of a single node need none.
        let credentials = self.credentials.clone().filter(|_| self.world_size > 1);
        let bootstrap = BootstrapInfo {
            is_rendezvous_store: true,
            ..BootstrapInfo::new(master, true, false).with_credentials(credentials)
        };
        let store = PrefixStore::new(self.run_id.clone(), met.store);
        let mut info =
            RendezvousInfo::new(0, Arc::new(store), self.rank, self.world_size, bootstrap);
        info.route = met.route;
        Ok(info)
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        let Some(board) = self.board() else {
            return Ok(false);
        };
        let closed = board.check(&[CLOSED]);
        closed.map_err(|error| RendezvousError::connection(&self.run_id, error))
    }

    /// Notifies the nodes of this project, which then stop. The nodes of PyTorch keep running.
    fn set_closed(&self) -> Result<(), RendezvousError> {
        let Some(board) = self.board() else {
            return Ok(());
        };
        let closed = board.set(CLOSED, b"1");
        closed.map_err(|error| RendezvousError::connection(&self.run_id, error))
    }

    fn agree_on_keeping(&self, keeps: bool) -> Result<(), RendezvousError> {
        let Some(board) = self.board().filter(|_| self.world_size > 1) else {
            return Ok(());
        };
        let node = format!("node rank {} on {}", self.rank, this_host::full_name());
        let own = keeping::claim_of(&node, keeps);
        let claim = board.compare_set(KEEP, b"", own.as_bytes());
        let claim = claim.map_err(|error| RendezvousError::connection(&self.run_id, error))?;
        keeping::compare(&self.run_id, claim.value(), &node, keeps)
    }

    fn membership(&self) -> Result<Membership, RendezvousError> {
        Ok(Membership {
            is_closed: self.shared.is_closed.load(Ordering::Acquire),
            ..Membership::default()
        })
    }

    fn keeps_store_for(&self) -> Option<Duration> {
        self.met().as_ref()?.hosted.as_ref().map(|_| PATIENCE)
    }

    fn detach(&self) {
        self.stop_watch();
    }

    fn add_listener(&self, listener: Listener) {
        let listeners = self.shared.listeners.lock();
        listeners
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .push(listener);
    }

    fn interrupt(&self) {
        self.cancel.cancel();
    }

    fn leave(&self) -> Result<(), RendezvousError> {
        Ok(())
    }

    fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Closes nothing, because a node that has succeeded must not stop the other nodes.
    fn shutdown(&self) -> bool {
        self.stop_watch();
        true
    }
}

impl Drop for StaticRendezvous {
    fn drop(&mut self) {
        self.stop_watch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::parameters::parse_config;

    fn node() -> StaticRendezvous {
        let config = parse_config("rank=1,timeout=1").unwrap();
        let parameters = RendezvousParameters::new("static", "node0:29500", "job", 2, 2).unwrap();
        StaticRendezvous::new(&parameters.with_config(config)).unwrap()
    }

    /// A start from which the timeout of [`node`] and the grace have passed.
    fn long_ago() -> Instant {
        Instant::now()
            .checked_sub(Duration::from_secs(1) + GRACE)
            .unwrap()
    }

    #[test]
    fn a_store_that_does_not_open_in_time_is_a_timeout_with_its_address_and_limit() {
        let (_still_opening, opened) = channel();
        let error = node().await_all(&opened, long_ago()).unwrap_err();
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
    fn an_interrupt_ends_the_wait_for_the_store() {
        // It accepts no connection.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = silent.local_addr().unwrap().to_string();
        let config = parse_config("rank=1,timeout=3600").unwrap();
        let parameters = RendezvousParameters::new("static", endpoint, "job", 2, 2).unwrap();
        let node = StaticRendezvous::new(&parameters.with_config(config)).unwrap();
        let (waits, waiting) = channel();
        node.add_listener(Arc::new(move |_| {
            let _ = waits.send(());
        }));
        let error = std::thread::scope(|scope| {
            let joining = scope.spawn(|| node.next_rendezvous().unwrap_err());
            waiting.recv().unwrap();
            node.interrupt();
            joining.join().unwrap()
        });
        assert!(
            matches!(error, RendezvousError::Interrupted { .. }),
            "{error}"
        );
    }
}
