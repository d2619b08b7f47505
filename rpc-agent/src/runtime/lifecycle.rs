//! The parts of a running agent, and how they end.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, TlsServer};
use c10d_store::Store;
use mio::Poll;

use super::acceptor::AcceptOptions;
use super::caller::Caller;
use super::dialer::Dialer;
use super::driver::{Driver, Served};
use super::future_driver::FutureDriver;
use super::peers::Core;
use super::poller::Poller;
use super::retrier::Retrier;
use super::shutdown_turn::ShutdownTurn;
use super::sockets::Sockets;
use crate::directory::Directory;
use crate::future::{Job, contained};
use crate::metrics::MetricsSnapshot;
use crate::options::AgentOptions;
use crate::peer::{Config, IncomingLimits};
use crate::pool::{Pool, Work};
use crate::registry_id::RegistryId;
use crate::segmented_queue::SegmentedQueue;
use crate::sync::{Lock, Monitor, WaitEnd};
use crate::termination::{Activity, Dead, Termination, TerminationError};

/// How long the end of an agent waits for a thread that is writing to a connection. None of them blocks.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// What an agent is made of.
pub(crate) struct Parts {
    pub(crate) config: Config,
    /// Of the registry with the functions.
    pub(crate) registry_id: RegistryId,
    pub(crate) directory: Directory,
    /// Kept open for as long as the agent: it may host the server that the others use.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) poll: Poll,
    pub(crate) sockets: Sockets,
    pub(crate) listeners: Vec<TcpListener>,
    /// Of the credentials.
    pub(crate) tls_server: Option<TlsServer>,
    pub(crate) options: AgentOptions,
    /// Of the jitter of retries.
    pub(crate) seed: u64,
}

/// A running agent, without the functions that it serves.
pub(crate) struct Runtime {
    pub(crate) driver: Arc<Driver>,
    pub(crate) caller: Arc<Caller>,
    pub(crate) retries: Arc<Retrier>,
    pub(crate) registry_id: RegistryId,
    /// `None` while a thread polls, which the pool lets one at a time do, and after the end.
    poller: Lock<Option<Box<Poller>>>,
    directory: Arc<Directory>,
    _store: Arc<dyn Store>,
    /// How often the group was joined for its end.
    joins: AtomicU64,
    shutdown_turn: ShutdownTurn,
    /// Of the waits of [`Runtime::join`] and [`Runtime::leave`].
    cancel: Cancel,
    /// A thread is ending the agent in order.
    is_ending: Arc<Monitor<bool>>,
    ended: Lock<Vec<Job>>,
}

impl Runtime {
    /// Puts the parts together. No thread runs yet.
    pub(crate) fn new(parts: Parts) -> io::Result<Arc<Self>> {
        let limits = IncomingLimits {
            message_bytes_max: parts.config.message_bytes_max,
            ..IncomingLimits::default()
        };
        let directory = Arc::new(parts.directory);
        let me = parts.config.me.clone();
        let workers = directory.workers().into_iter().chain([me]);
        let options = parts.options;
        let pool = Pool::new(&options.name, options.handler_threads, options.threads_max);
        let driver = Arc::new(Driver::new(
            parts.config,
            parts.sockets,
            pool,
            workers,
            options.faults,
            Instant::now(),
        ));
        let poller = Poller::new(
            &driver,
            parts.poll,
            parts.listeners,
            AcceptOptions {
                socket_options: options.socket.clone(),
                tls: parts.tls_server,
                limits,
                is_dynamic_group: directory.is_dynamic(),
            },
        )?;
        let caller = Arc::new(Caller::new(
            &driver,
            &directory,
            FutureDriver::executor(&driver),
            options.timeout,
        ));
        driver.dials.start(Arc::new(Dialer {
            driver: Arc::clone(&driver),
            directory: Arc::clone(&directory),
            socket_options: options.socket,
            credentials: options.credentials,
            limits,
        }));
        let runtime = Self {
            retries: Retrier::new(&caller, parts.seed),
            driver,
            caller,
            registry_id: parts.registry_id,
            poller: Lock::new(Some(Box::new(poller))),
            directory,
            _store: parts.store,
            joins: AtomicU64::new(0),
            shutdown_turn: ShutdownTurn::default(),
            cancel: options.cancel,
            is_ending: Arc::default(),
            ended: Lock::default(),
        };
        Ok(Arc::new(runtime))
    }

    /// Starts the threads; `work` is done by those of the pool. After an error [`Runtime::stop`] ends what was started.
    pub(crate) fn start(&self, work: Arc<dyn Work<Served>>) -> io::Result<()> {
        self.driver.pool.start(work)
    }

    /// Waits for the sockets once; requests that may run go to `admitted`.
    pub(crate) fn poll(&self, admitted: &mut SegmentedQueue<Served>) {
        let Some(mut poller) = self.poller.lock().take() else {
            return;
        };
        poller.poll(admitted);
        *self.poller.lock() = Some(poller);
    }

    /// Runs a job on a thread of the pool at `at`, unless the agent has ended by then.
    pub(crate) fn spawn_at(&self, at: Instant, job: Job) {
        let driver = Arc::clone(&self.driver);
        self.driver.run_at(at, Box::new(move || driver.spawn(job)));
    }

    /// Runs a callback when the agent has ended; one that comes too late is dropped.
    pub(crate) fn on_end(&self, callback: Job) {
        let mut callbacks = self.ended.lock();
        // Under the lock: the thread that ends the agent takes the callbacks after that.
        if !self.driver.stage.is_stopped() {
            callbacks.push(callback);
        }
    }

    /// Whether the caller is to end the agent: once, and not when it has ended. Waits while another thread does.
    pub(crate) fn begin_ending(&self, deadline: Deadline) -> Result<bool, TerminationError> {
        let began = Instant::now();
        let is_running = || self.driver.stage.is_running();
        if is_running() && self.driver.pool.is_own_thread() {
            return Err(self.busy(began.elapsed()));
        }
        let waited = self
            .is_ending
            .wait_for((deadline, &self.cancel), |is_ending| {
                !*is_ending || !is_running()
            });
        *waited.map_err(|end| self.not_ended(end, began))? = true;
        Ok(is_running())
    }

    /// Leaves the group in order: with all others, or alone if its members come and go.
    pub(crate) fn leave(&self, deadline: Deadline) -> Result<(), TerminationError> {
        if !self.directory.is_dynamic() {
            return self.join(deadline);
        }
        let began = Instant::now();
        let waited = self.driver.activity.wait_idle(deadline, &self.cancel);
        waited.map_err(|end| self.not_ended(end, began))?;
        self.directory.leave(deadline, &self.cancel)?;
        Ok(())
    }

    /// Waits until no call is outstanding anywhere in the group. A join that failed is continued by the next one: the
    /// others wait in the same round.
    pub(crate) fn join(&self, deadline: Deadline) -> Result<(), TerminationError> {
        let began = Instant::now();
        let stopped = self.shutdown_turn.begin(deadline, &self.cancel);
        let stopped = stopped.map_err(|end| self.not_ended(end, began))?;
        let begun = match stopped {
            Some(termination) => Ok(termination),
            None => self.directory.clone_store(deadline).map(|store| {
                let generation = self.joins.fetch_add(1, Ordering::SeqCst);
                let workers = self.directory.workers();
                Termination::new(store, generation, self.driver.me().clone(), workers)
            }),
        };
        let mut termination = match begun {
            Ok(termination) => termination,
            Err(error) => {
                self.shutdown_turn.end(None);
                return Err(error.into());
            }
        };
        let result = termination.run(self, deadline, &self.cancel);
        self.shutdown_turn
            .end(result.is_err().then_some(termination));
        result
    }

    pub(crate) fn metrics(&self) -> MetricsSnapshot {
        let driver = &self.driver;
        let peers = driver.peers.all();
        let peers = peers
            .iter()
            .map(|peer| peer.metrics.snapshot(peer.info.clone()));
        let (pool, retries) = (driver.pool.gauges(), self.retries.waiting());
        driver.metrics.snapshot(pool, retries, peers.collect())
    }

    /// Ends everything, once; a second caller waits for nothing.
    pub(crate) fn stop(&self) {
        let driver = &self.driver;
        if !driver.stage.begin_stop() {
            return;
        }
        driver.activity.end_waits();
        driver.end_store_wait();
        // A thread that waits for its turn to end the agent need not wait any longer. Locked, so that it sleeps
        // already, or has seen the stage.
        self.is_ending.ring();
        self.retries.stop();
        driver.timers.stop();
        // Before the dials have ended, which can take a moment: no call has to wait for that.
        driver.peers.close();
        self.end_connections();
        driver.ended.cancel();
        driver.dials.stop();
        driver.pool.stop();
        // Closes the listeners also when a function of this agent has stopped it and still runs.
        drop(self.poller.lock().take());
        driver.stage.end_stop();
        // What a function or a callback that was still running began.
        self.end_connections();
        self.retries.stop();
        let ended = std::mem::take(&mut *self.ended.lock());
        for callback in ended {
            contained("the callback of `on_end`", callback);
        }
    }

    /// Says goodbye to all peers, and fails the calls to them.
    fn end_connections(&self) {
        for peer in self.driver.peers.all() {
            self.driver.step(&peer, Core::say_goodbye);
            // A thread that is writing takes the farewell along, if it is given the time to.
            peer.wait_written(Deadline::after(Instant::now(), FAREWELL_MAX));
            self.driver.step(&peer, Core::end);
        }
    }

    fn not_ended(&self, end: WaitEnd, began: Instant) -> TerminationError {
        let elapsed = began.elapsed();
        match end {
            WaitEnd::Late => self.busy(elapsed),
            WaitEnd::Cancelled => TerminationError::Interrupted { round: 0, elapsed },
        }
    }

    fn busy(&self, elapsed: Duration) -> TerminationError {
        TerminationError::Busy {
            me: Box::new(self.driver.me().clone()),
            round: 0,
            calls_out: self.calls_out(),
            elapsed,
        }
    }
}

impl Activity for Runtime {
    fn wait_idle(&self, by: Deadline, cancel: &Cancel) -> Result<(), WaitEnd> {
        self.driver.activity.wait_idle(by, cancel)
    }

    fn calls_started(&self) -> u64 {
        self.driver.activity.calls_started()
    }

    fn calls_out(&self) -> usize {
        let peers = self.driver.peers.all();
        peers.iter().map(|peer| peer.calls_in_flight()).sum()
    }

    fn is_interrupted(&self) -> bool {
        !self.driver.stage.is_running()
    }

    fn begin_store_wait(&self) -> Cancel {
        self.driver.begin_store_wait()
    }

    fn dead(&self) -> Dead {
        let now = Instant::now();
        let mut dead = Dead::default();
        for peer in self.driver.peers.all() {
            let ask = |core: &mut Core| (core.is_known_dead(now), core.is_lost());
            let (is_dead, is_lost) = self.driver.step(&peer, ask);
            if is_dead {
                dead.workers.push(peer.info.clone());
            }
            dead.is_any_lost |= is_lost;
        }
        dead
    }
}
