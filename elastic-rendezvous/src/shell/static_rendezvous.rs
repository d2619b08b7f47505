//! The static rendezvous: each node is given its rank, and all meet once at a store.

mod meeting;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, printable, sleep};
use c10d_store::{PrefixStore, Store, StoreExt};

use self::meeting::{EVENT_INTERVAL, Meeting, Met, PATIENCE, Plan, Progress, reads_names};
use crate::shell::handler::{
    BootstrapInfo, Listener, RendezvousEvent, RendezvousHandler, RendezvousInfo,
};
use crate::shell::handler_state::{Listeners, WAIT_CHARS_MAX};
use crate::shell::{keep_claim, this_host};
use crate::values::endpoint::Endpoint;
use crate::values::error::RendezvousError;
use crate::values::parameters::RendezvousParameters;
use crate::values::parameters_error::ParametersError;
use crate::values::ranks_report::RanksReport;
use crate::values::report::Membership;

/// The name that selects this rendezvous.
pub const STATIC_BACKEND: &str = "static";

/// The time in which all nodes must join, without a `timeout` setting. The command `c10d run` sets 900 s, like
/// torchrun.
pub const STATIC_TIMEOUT: Duration = Duration::from_secs(600);

const THREAD: &str = "rendezvous-static";
const WATCH_THREAD: &str = "static-closed";

/// The key that our nodes set to close the rendezvous, below the run id.
const CLOSED: &str = "c10d/static/closed";

/// Whether the nodes keep the workers that survive another worker, below the run id.
const KEEP: &str = "c10d/static/keep";

/// The pause before a node waits for the closing again, after an error of the store.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// When a wait is first logged. The interval then doubles, up to a minute.
const FIRST_LOG_AFTER: Duration = Duration::from_secs(5);
const LOG_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// How long a store that is being opened may exceed the timeout to report its own error, which includes questions to the listener.
const GRACE: Duration = Duration::from_secs(10);

/// A node of a rendezvous in which each node is given its rank.
///
/// Rank 0 hosts the store at the endpoint, the other nodes connect to it, and all nodes wait until every node has
/// joined. The number of nodes is the parameters' maximum. In PyTorch: `StaticTCPRendezvous`
/// (`torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py`).
#[derive(Debug)]
pub struct StaticRendezvous {
    plan: Arc<Plan>,
    met: Mutex<Option<Met>>,
    shared: Arc<Shared>,
    watch: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the handler shares with the thread that waits for the closing.
#[derive(Debug)]
struct Shared {
    listeners: Listeners,
    is_closed: AtomicBool,
    /// Ends the wait.
    detached: Cancel,
}

impl Shared {
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
        self.listeners.notify(&RendezvousEvent::MembershipChanged);
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
            plan: Arc::new(Plan {
                run_id: parameters.run_id().to_owned(),
                target: HostPort::new(endpoint.host(), port),
                rank,
                world_size,
                timeout: parameters.get_as_duration("timeout", STATIC_TIMEOUT)?,
                server_hook: parameters.server_hook().cloned(),
                credentials: parameters.credentials().cloned(),
                server_options: parameters.server_options(),
                local_addr: parameters.local_addr().map(str::to_owned),
                cancel: Cancel::new(),
            }),
            met: Mutex::default(),
            shared: Arc::new(Shared {
                listeners: Listeners::default(),
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
            run_id: self.plan.run_id.clone(),
        }
    }

    /// Joins on a separate thread, while the calling thread reports. An interrupt stops the thread's wait. After a
    /// timeout, the thread stops with its current store call, which has the same timeout.
    fn meet(&self) -> Result<Met, RendezvousError> {
        let (sender, progress) = channel();
        let meeting = Meeting::new(Arc::clone(&self.plan), sender);
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
        let deadline = Deadline::after(started, self.plan.timeout);
        let mut report = self.first_report();
        let mut reported = Reported::default();
        loop {
            let grace = if report.is_connected {
                Duration::ZERO
            } else {
                GRACE
            };
            let next = self
                .plan
                .timeout
                .saturating_add(grace)
                .min(reported.next_event_at);
            let received = progress.recv_timeout(next.saturating_sub(started.elapsed()));
            // It also stops the thread.
            if self.plan.cancel.is_cancelled() {
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
                    report.endpoint = HostPort::new(self.plan.target.host(), port);
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
            report.time_left = self.plan.timeout.saturating_sub(report.waited);
            if deadline.has_passed(now) && report.is_connected {
                let report = Box::new(report);
                return Err(RendezvousError::RanksMissing { report });
            }
            if report.waited >= self.plan.timeout.saturating_add(GRACE) {
                // The server accepted the connection and then stopped answering.
                let error = self.plan.no_reply(report.waited);
                return Err(RendezvousError::connection(&self.plan.run_id, error));
            }
            self.report(&report, &mut reported);
        }
    }

    fn first_report(&self) -> RanksReport {
        RanksReport {
            run_id: self.plan.run_id.clone(),
            endpoint: self.plan.target.clone(),
            rank: self.plan.rank,
            world_size: self.plan.world_size,
            is_connected: false,
            joined: 0,
            has_names: reads_names(self.plan.rank, self.plan.world_size),
            named: BTreeMap::new(),
            waited: Duration::ZERO,
            time_left: self.plan.timeout,
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
                "still waiting for other nodes after {} s, for up to {} s more: {}",
                report.waited.as_secs(),
                report.time_left.as_secs(),
                printable(&report.in_brief(), WAIT_CHARS_MAX),
            );
            log::debug!("{report}");
            reported.next_log_at = report.waited + report.waited.min(LOG_INTERVAL_MAX);
        }
        self.shared
            .listeners
            .notify(&RendezvousEvent::WaitingForRanks(report));
    }

    /// The store below the run id.
    fn board(&self) -> Option<Arc<dyn Store>> {
        let store = Arc::clone(&self.met().as_ref()?.store);
        Some(Arc::new(PrefixStore::new(self.plan.run_id.clone(), store)))
    }

    /// Starts a thread that notices when another node closes the rendezvous.
    fn watch_closing(&self) -> Result<(), RendezvousError> {
        let Some(store) = self.board().filter(|_| self.plan.world_size > 1) else {
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

    /// Returns the only round of this rendezvous, which is the same for each call.
    fn next_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError> {
        if self.plan.cancel.is_cancelled() {
            return Err(self.interrupted());
        }
        let known = self.met().clone();
        let met = match known {
            Some(met) => met,
            None => {
                let met = self.meet()?;
                *self.met() = Some(met.clone());
                self.watch_closing()?;
                self.shared
                    .listeners
                    .notify(&RendezvousEvent::MembershipChanged);
                met
            }
        };
        let master = HostPort::new(self.plan.target.host(), met.port);
        // Processes of a single node need none.
        let credentials = self
            .plan
            .credentials
            .clone()
            .filter(|_| self.plan.world_size > 1);
        let bootstrap = BootstrapInfo {
            is_rendezvous_store: true,
            ..BootstrapInfo::new(master, true, false).with_credentials(credentials)
        };
        let store = PrefixStore::new(self.plan.run_id.clone(), met.store);
        let mut info = RendezvousInfo::new(
            0,
            Arc::new(store),
            self.plan.rank,
            self.plan.world_size,
            bootstrap,
        );
        info.route = met.route;
        Ok(info)
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        let Some(board) = self.board() else {
            return Ok(false);
        };
        let closed = board.check(&[CLOSED]);
        closed.map_err(|error| RendezvousError::connection(&self.plan.run_id, error))
    }

    /// Notifies the nodes of this project, which then stop. The nodes of PyTorch keep running.
    fn set_closed(&self) -> Result<(), RendezvousError> {
        let Some(board) = self.board() else {
            return Ok(());
        };
        let closed = board.set(CLOSED, b"1");
        closed.map_err(|error| RendezvousError::connection(&self.plan.run_id, error))
    }

    fn agree_on_keeping(&self, keeps: bool) -> Result<(), RendezvousError> {
        let Some(board) = self.board().filter(|_| self.plan.world_size > 1) else {
            return Ok(());
        };
        let node = format!("node rank {} on {}", self.plan.rank, this_host::full_name());
        let own = keep_claim::claim_of(&node, keeps);
        let claim = board.compare_set(KEEP, b"", own.as_bytes());
        let claim = claim.map_err(|error| RendezvousError::connection(&self.plan.run_id, error))?;
        keep_claim::compare(&self.plan.run_id, claim.value(), &node, keeps)
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
        self.shared.listeners.add(listener);
    }

    fn interrupt(&self) {
        self.plan.cancel.cancel();
    }

    fn leave(&self) -> Result<(), RendezvousError> {
        Ok(())
    }

    fn run_id(&self) -> &str {
        &self.plan.run_id
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
    use c10d_store::StoreError;

    use super::*;
    use crate::values::parameters::parse_config;

    fn node() -> StaticRendezvous {
        let config = parse_config("rank=1,timeout=1").unwrap();
        let parameters = RendezvousParameters::new("static", "node0:29500", "job", 2, 2).unwrap();
        StaticRendezvous::new(&parameters.with_config(config)).unwrap()
    }

    /// A start so early that the timeout of [`node`] and the grace have passed by now.
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
        // This listener accepts no connection.
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
