//! The join of a node of a static rendezvous: it opens the store and waits until all nodes have joined there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions, Cancel, Deadline, DialStage, HostPort, sleep};
use c10d_store::{
    Credentials, ErrorContext, ListenOn, Operation, PrefixStore, ServerOptions, Store, StoreError,
    StoreExt, StoreHandle as _, TcpStore, TcpStoreOptions,
};

use crate::shell::board::STATIC_NAMES;
use crate::shell::bootstrap::protected;
use crate::shell::listener_watch::{ListenerWatch, has_many_keys, runs_at};
use crate::shell::own_host::given_addresses;
use crate::shell::reconnection::{ReconnectingStore, connect_to};
use crate::shell::this_host;
use crate::values::error::{RendezvousError, is_outage};
use crate::values::node::NodeId;
use crate::values::store_access::{ServerHook, StoreRoute};

/// How often listeners get a report and missing names are read.
pub(super) const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a request is repeated while the store does not answer. The dynamic rendezvous waits for the same time.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// How often the count of nodes is read: by the host always after the first interval, like PyTorch's, and by
/// the other nodes after intervals that double.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The pause before a lost connection is replaced.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The longest interval of the other nodes: all of them together make at most 500 requests a second, or one each in large worlds.
fn poll_interval_max(world_size: usize) -> Duration {
    let millis = u64::try_from(world_size)
        .unwrap_or(u64::MAX)
        .saturating_mul(2);
    Duration::from_millis(millis.clamp(50, 1000))
}

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

/// A node, and how it joins.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) run_id: String,
    pub(super) target: HostPort,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) timeout: Duration,
    pub(super) server_hook: Option<ServerHook>,
    pub(super) credentials: Option<Credentials>,
    pub(super) server_options: ServerOptions,
    pub(super) local_addr: Option<String>,
    /// Cancels this join and all later joins.
    pub(super) cancel: Cancel,
}

impl Plan {
    /// The value of the key of this node's name.
    fn name(&self) -> String {
        format!("{} {}", std::process::id(), this_host::full_name())
    }

    /// The store does not answer after this time.
    pub(super) fn no_reply(&self, elapsed: Duration) -> StoreError {
        let label = format!("TCP store {}", self.target);
        StoreError::NoReply {
            context: ErrorContext::new(Operation::Open, [], label, elapsed),
            timeout: self.timeout,
        }
    }
}

/// The store at which all nodes have met.
#[derive(Debug, Clone)]
pub(super) struct Met {
    pub(super) store: Arc<dyn Store>,
    pub(super) port: u16,
    pub(super) route: StoreRoute,
    /// Keeps the server, if this process has it.
    pub(super) hosted: Option<Arc<TcpStore>>,
}

/// A message of the thread that joins.
#[derive(Debug)]
pub(super) enum Progress {
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
pub(super) struct Meeting {
    plan: Arc<Plan>,
    named: BTreeMap<usize, NodeId>,
    /// The rank whose name is asked next.
    next_name: usize,
    to_owner: Sender<Progress>,
}

impl Meeting {
    pub(super) const fn new(plan: Arc<Plan>, to_owner: Sender<Progress>) -> Self {
        Self {
            plan,
            named: BTreeMap::new(),
            next_name: 0,
            to_owner,
        }
    }

    pub(super) fn run(mut self) {
        let run_id = self.plan.run_id.clone();
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
        let deadline = Deadline::after(started, self.plan.timeout);
        let credentials = self.plan.credentials.as_ref();
        let mut watch = ListenerWatch::new(
            &self.plan.target,
            credentials,
            &self.plan.run_id,
            &self.plan.cancel,
        );
        let mut attempt_timeout = FIRST_ATTEMPT_TIMEOUT;
        let mut backoff = Backoff::new(pauses(), fastrand::u64(..));
        loop {
            let left = deadline.remaining(Instant::now()).unwrap_or(Duration::MAX);
            let error = match self.try_open(left.min(attempt_timeout)) {
                Ok(store) if !self.is_foreign(&store) => return Ok(store),
                Ok(_) => self.plan.no_reply(started.elapsed()),
                Err(error) => error,
            };
            let left = deadline.remaining(Instant::now()).unwrap_or(Duration::MAX);
            if left.is_zero() || !self.may_become_free(&error) {
                let error = match error {
                    StoreError::Connect { context, source } => StoreError::Connect {
                        context,
                        source: source.with_total(started.elapsed(), self.plan.timeout),
                    },
                    error => error,
                };
                return Err(watch.error(RendezvousError::connection(&self.plan.run_id, error)));
            }
            watch.on_failure(deadline);
            attempt_timeout = ATTEMPT_TIMEOUT;
            if is_unanswered(&error) {
                backoff = Backoff::new(pauses(), fastrand::u64(..));
            }
            if sleep(left.min(backoff.next_delay()), [&self.plan.cancel]).is_err() {
                return Err(RendezvousError::Interrupted {
                    run_id: self.plan.run_id.clone(),
                });
            }
        }
    }

    fn try_open(&self, timeout: Duration) -> Result<TcpStore, StoreError> {
        let mut options = TcpStoreOptions::default();
        if let Some(credentials) = &self.plan.credentials {
            options = options.with_credentials(credentials.clone());
        }
        // The workers use the same store.
        let server_options = protected(
            self.plan.server_options.clone(),
            self.plan.credentials.as_ref(),
        );
        let is_host = self.plan.rank == 0;
        let local_addr = self.plan.local_addr.as_deref().filter(|_| is_host);
        let options = options
            .with_server_options(server_options)
            .with_master(is_host)
            .with_multi_tenant(true)
            .with_listen_on(ListenOn::HostIfKnown)
            .with_listen_also_on(given_addresses(local_addr))
            .with_timeout(timeout)
            .with_cancel(self.plan.cancel.clone());
        let store = TcpStore::open(self.plan.target.host(), self.plan.target.port(), options)?;
        store.set_timeout(Some(self.plan.timeout));
        Ok(store)
    }

    /// Whether a later attempt may succeed after this failure: the store may start later, and what else listens at the endpoint
    /// may end. The only node of a job waits for no other node.
    fn may_become_free(&self, error: &StoreError) -> bool {
        match error {
            StoreError::Listen(error) => error.is_address_in_use() && self.plan.world_size > 1,
            StoreError::Protocol { .. } => self.plan.credentials.is_none(),
            error => is_outage(error),
        }
    }

    /// Whether the store belongs to another job or to an earlier start of this job: another process has this node's
    /// rank there, or node rank 0 has not joined there, but nodes of another job have, or all nodes, or it has many keys.
    fn is_foreign(&self, store: &TcpStore) -> bool {
        if self.plan.rank == 0 {
            return false;
        }
        let names = PrefixStore::new(
            self.plan.run_id.clone(),
            Arc::new(store.with_cancel(&self.plan.cancel)),
        );
        match names.try_get(&name_key(self.plan.rank)) {
            Ok(Some(name)) => return name != self.plan.name().as_bytes(),
            Ok(None) => {}
            // The next request fails for the same reason.
            Err(_) => return false,
        }
        if names.check(&[&name_key(0)]).unwrap_or(true) {
            return false;
        }
        // PyTorch's nodes write no names.
        let is_full =
            |joined: i64| usize::try_from(joined).is_ok_and(|it| it >= self.plan.world_size);
        if has_many_keys(store).unwrap_or(false) || store.worker_count().is_ok_and(is_full) {
            return true;
        }
        let credentials = self.plan.credentials.as_ref();
        let runs = runs_at(
            &self.plan.target,
            credentials,
            &self.plan.run_id,
            &self.plan.cancel,
        );
        runs.iter().any(|run| *run != self.plan.run_id)
    }

    /// Returns `None` if the join was interrupted, or the owner no longer waits.
    fn meet(&mut self, connection: TcpStore) -> Result<Option<Met>, StoreError> {
        let port = connection.port();
        let endpoint = HostPort::new(self.plan.target.host(), port);
        let route = StoreRoute::new(endpoint, connection.connection_ends());
        if self.plan.rank == 0 {
            let host = self.plan.target.host();
            log::debug!("this process hosts the rendezvous store at {host}:{port}");
        }
        if let (Some(hook), Some(server)) = (&self.plan.server_hook, connection.server()) {
            hook.call(server);
        }
        let hosted = connection
            .server()
            .map(|_| Arc::new(connection.with_cancel(&Cancel::NEVER)));
        let first = Arc::new(connection.with_cancel(&self.plan.cancel));
        let name = self.plan.name();
        PrefixStore::new(self.plan.run_id.clone(), first)
            .set(&name_key(self.plan.rank), name.as_bytes())?;
        // PyTorch's nodes do the same; the host waits for this count.
        connection.count_worker()?;
        let connect = Arc::new(connect_to(
            self.plan.target.clone().into(),
            hosted.as_deref(),
            self.plan.credentials.clone(),
        ));
        let store: Arc<dyn Store> = Arc::new(ReconnectingStore::of_connections(
            Arc::new(connection.with_cancel(&Cancel::NEVER)),
            Arc::clone(&connect),
            PATIENCE,
        ));
        let names = PrefixStore::new(
            self.plan.run_id.clone(),
            store.with_cancel(&self.plan.cancel),
        );
        let mut count = Count {
            connection,
            connect: &*connect,
            answered_at: Instant::now(),
        };
        let mut pause = POLL_INTERVAL_MIN;
        let mut next_names_at = Instant::now();
        loop {
            let joined = usize::try_from(count.read(&self.plan.cancel)?).unwrap_or(0);
            if joined >= self.plan.world_size {
                return Ok(Some(Met {
                    store,
                    port,
                    route,
                    hosted,
                }));
            }
            let now = Instant::now();
            if now >= next_names_at && reads_names(self.plan.rank, self.plan.world_size) {
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
            if sleep(pause, [&self.plan.cancel]).is_err() {
                return Ok(None);
            }
            if self.plan.rank != 0 {
                // The host's server must answer all other nodes.
                pause = (pause * 2).min(poll_interval_max(self.plan.world_size));
            }
        }
    }

    fn read_names(&mut self, names: &dyn Store) -> Result<(), StoreError> {
        // A long-missing rank does not hide the ranks above it.
        let from = self.next_name;
        let ranks = (from..self.plan.world_size).chain(0..from);
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
            if self.answered_at.elapsed() >= PATIENCE || sleep(RETRY_PAUSE, [cancel]).is_err() {
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
pub(super) const fn reads_names(rank: usize, world_size: usize) -> bool {
    rank == 0 || world_size <= NAMED_WORLD_MAX
}

/// The key of a node's name, below the run id. PyTorch's nodes neither write nor read it.
pub(super) fn name_key(rank: usize) -> String {
    // Below the run id, without the separator.
    format!("{}{rank}", &STATIC_NAMES[1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_together_ask_at_most_500_times_a_second_or_each_once() {
        for (world_size, millis) in [(2, 50), (64, 128), (500, 1000), (10_000, 1000)] {
            let pause = poll_interval_max(world_size);
            assert_eq!(pause, Duration::from_millis(millis), "{world_size}");
        }
    }
}
