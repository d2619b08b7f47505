//! The agent of a worker: calls out, calls in, and their end.

mod accept;
mod activity;
mod dial;
mod joint_end;
mod link;
mod options;
mod peer;
mod poller;
mod requests;
mod retries;
mod shared;

use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::{Deadline, HostPort, ListenError, ListenOptions, listen};
use c10d_store::{Store, StoreError};

pub use self::options::{AgentOptions, CallOptions};
pub(crate) use self::peer::ServedCall;
use self::poller::Sockets;
use self::requests::AgentWork;
use self::shared::{Parts, RUNNING, STOPPED, STOPPING, Shared};
use crate::directory::{Directory, DirectoryError, Group};
use crate::error::RpcError;
use crate::future::{Executor, FutureMessage, Hint, Job, Promise, RpcFuture, contained};
use crate::handler_error::HandlerError;
use crate::handshake::LinkState;
use crate::metrics::{Gauges, MetricsSnapshot};
use crate::registry::{Registry, RegistryId};
use crate::retry::{RetryGroup, RetryOptions};
use crate::termination::{self, Termination, TerminationError};
use crate::wire::Frame;
use crate::worker::{Destination, WorkerError, WorkerId, WorkerInfo};

/// So many unsent bytes of a connection are with the system at most: what is handed to it cannot be
/// overtaken any more.
const NOT_SENT_LOW_WATER: u32 = 1 << 20;

/// How long the end of an agent waits for a thread that is writing to a connection. None of them blocks.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// The agent of a worker: it serves the functions of its [`Registry`] to the others of its group, and
/// calls theirs. See the [crate's documentation](crate).
///
/// Dropping it ends it at once, as [`Agent::shutdown_now`] does.
pub struct Agent {
    handle: AgentHandle,
}

/// Makes calls through an [`Agent`]. Cheap to clone, and does not keep the agent alive: after its end
/// every call fails with [`RpcError::Shutdown`].
#[derive(Clone)]
pub struct AgentHandle {
    shared: Arc<Shared>,
}

impl Agent {
    /// Joins the group, whose members meet in `store`, and serves the functions of `registry`.
    ///
    /// Blocks until all workers of a group of fixed size are there, at most for
    /// [`AgentOptions::with_start_timeout`].
    ///
    /// # Errors
    /// [`StartError`]. A duplicate name or rank is an error on every worker of a group of fixed size,
    /// and names both claimants.
    pub fn start(
        options: AgentOptions,
        registry: Registry,
        store: Arc<dyn Store>,
    ) -> Result<Self, StartError> {
        let deadline = Deadline::after(Instant::now(), options.start_timeout);
        let me = WorkerInfo::new(&options.name, options.rank)?;
        let mut listen_options = ListenOptions::default()
            .with_port(options.port)
            .with_socket_options(options.socket.clone());
        if let Some(host) = &options.host {
            listen_options = listen_options.with_host(host.as_str());
        }
        let listeners = listen(&listen_options)?;
        let port = listeners
            .first()
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
            .and_then(std::net::TcpListener::local_addr)
            .map_err(StartError::Socket)?
            .port();
        let address = HostPort::new(advertised_host(&options), port).to_string();
        let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
        // 0 stands for "any" where incarnations are compared.
        let incarnation = fastrand::Rng::with_seed(seed ^ u64::from(options.rank)).u64(1..);
        let (sockets, poller) = Sockets::new(listeners).map_err(StartError::Socket)?;
        let group = match options.world_size {
            Some(world_size) => Group::Static { world_size },
            None => Group::Dynamic,
        };
        let own_store = store.clone_store().map_err(StartError::Store)?;
        let directory = Directory::join(
            own_store,
            me.clone(),
            &address,
            incarnation,
            group,
            deadline,
        )?;
        let parts = Parts {
            me,
            incarnation,
            options,
            registry,
            directory,
            store,
            sockets,
            retry_seed: seed,
        };
        let shared = Arc::new_cyclic(|weak: &Weak<Shared>| {
            Shared::new(parts, Arc::new(Driver(Weak::clone(weak))))
        });
        let agent = Self {
            handle: AgentHandle {
                shared: Arc::clone(&shared),
            },
        };
        // On failure the agent is dropped, which ends what was started.
        let weak = Arc::downgrade(&shared);
        let send_retry = move |call| {
            if let Some(shared) = weak.upgrade() {
                shared.send_retry(call);
            }
        };
        shared.retry.start(send_retry).map_err(StartError::Thread)?;
        let weak = Arc::downgrade(&shared);
        let on_timer = move |delayed| {
            if let Some(shared) = weak.upgrade() {
                shared.on_timer(delayed);
            }
        };
        shared.timer.start(on_timer).map_err(StartError::Thread)?;
        shared
            .pool
            .start(Arc::new(AgentWork::new(Arc::clone(&shared), poller)))
            .map_err(StartError::Thread)?;
        Ok(agent)
    }

    /// A handle that makes calls, for other threads.
    #[must_use]
    pub fn handle(&self) -> AgentHandle {
        self.handle.clone()
    }

    /// Waits until no call is outstanding anywhere in the group. All workers of the group must call it.
    ///
    /// The functions of this worker are served on. Blocks until all others have come and none of them
    /// has anything under way, at most for `timeout`; zero: for ever.
    ///
    /// # Errors
    /// [`TerminationError`], which names who had not come.
    pub fn join(&self, timeout: Duration) -> Result<(), TerminationError> {
        self.handle.shared.join(deadline_of(timeout))
    }

    /// Ends the agent together with all others of the group: no worker leaves while another still needs
    /// it, however calls are nested. All workers of a group of fixed size must call it. Of a group whose
    /// members come and go, this worker leaves when its own calls have ended.
    ///
    /// Blocks at most for `timeout` until all are ready to end, zero: for ever; and then until the
    /// functions that run here have returned. The agent has ended afterwards, even after an error. A
    /// second time it does nothing, and from a second thread it waits for the first one.
    ///
    /// Not for a function or a callback of this agent, which would wait for itself: there it fails at
    /// once.
    ///
    /// # Errors
    /// [`TerminationError`], which names who had not come.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), TerminationError> {
        let shared = &self.handle.shared;
        let deadline = deadline_of(timeout);
        match shared.take_turn_to_end(deadline) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                shared.stop();
                return Err(error);
            }
        }
        let result = if shared.options.world_size.is_some() {
            shared.join(deadline)
        } else {
            shared.leave(deadline)
        };
        shared.stop();
        result
    }

    /// Ends the agent at once: calls and retries that are under way fail, others' calls to this worker
    /// fail, too. Blocks until the functions that run here have returned. A second time it does nothing.
    pub fn shutdown_now(&self) {
        self.handle.shared.stop();
    }
}

impl Deref for Agent {
    type Target = AgentHandle;

    fn deref(&self) -> &AgentHandle {
        &self.handle
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.handle.shared.stop();
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Agent")
            .field(&self.handle.shared.me)
            .finish()
    }
}

impl AgentHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// This worker.
    #[must_use]
    pub fn me(&self) -> &WorkerInfo {
        &self.shared.me
    }

    /// All workers of the group that this one knows of.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let peers = self.shared.peers();
        peers.iter().map(|peer| peer.info.clone()).collect()
    }

    /// A worker by name or id. In a group whose members come and go the store is asked for one that is
    /// not known yet.
    ///
    /// # Errors
    /// [`RpcError::NoSuchWorker`].
    pub fn worker<'a>(&self, which: impl Into<Destination<'a>>) -> Result<WorkerInfo, RpcError> {
        self.shared.find(which.into()).map(|peer| peer.info.clone())
    }

    /// How long a call may take that has no timeout of its own; zero: for ever.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.shared.timeout()
    }

    /// Changes [`AgentHandle::timeout`] for later calls.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.set_timeout(timeout);
    }

    /// Calls a function with bytes and waits for the bytes that it returns, for at most the agent's
    /// timeout.
    ///
    /// May be called from a function that this agent runs.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn call_bytes<'a>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        payload: impl Into<Bytes>,
    ) -> Result<Bytes, RpcError> {
        self.call_bytes_async(to, function, payload, CallOptions::default())
            .wait()
    }

    /// [`AgentHandle::call_bytes`] with options.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn call_bytes_with<'a>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        payload: impl Into<Bytes>,
        options: CallOptions,
    ) -> Result<Bytes, RpcError> {
        self.call_bytes_async(to, function, payload, options).wait()
    }

    /// Calls a function with bytes and does not wait. What goes wrong is the future's result.
    pub fn call_bytes_async<'a>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        payload: impl Into<Bytes>,
        options: CallOptions,
    ) -> FutureMessage {
        self.shared
            .call(to.into(), function, payload.into(), options.timeout)
    }

    /// Calls a function until it succeeds, at least once: if an answer is lost the function runs again, so
    /// it must do no harm twice. Does not wait.
    pub fn call_bytes_with_retries<'a>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        payload: impl Into<Bytes>,
        options: &RetryOptions,
    ) -> FutureMessage {
        self.shared
            .call_with_retries(to.into(), function, payload.into(), options)
    }

    /// Ends the calls of a group to a worker, as if their retries were exhausted:
    /// [`RpcError::RetriesExhausted`]. For callers that know that the worker is dead. Does not wait.
    ///
    /// Calls that wait for their next attempt end now, others with the attempt that is under way. Calls
    /// outside of the group, and those that begin later, are retried as usual.
    pub fn abandon_retries(&self, group: &RetryGroup, worker: WorkerId) {
        self.shared.abandon_retries(group, worker);
    }

    /// Has a callback run, on a thread of the agent, each time that the connection to a worker ends
    /// without its farewell, with the reason. Calls that were under way have failed by then.
    pub fn on_peer_lost(&self, callback: impl Fn(&WorkerInfo, &str) + Send + Sync + 'static) {
        let mut callbacks = self
            .shared
            .peer_lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        callbacks.push(Arc::new(callback));
    }

    /// Has a callback run, on a thread of the agent, each time that a worker ends its connection with a
    /// farewell: its agent has ended in order, or has left the group. With the incarnation of the process
    /// that did so: another one may be connected by the time that the callback runs.
    pub fn on_peer_left(
        &self,
        callback: impl Fn(&WorkerInfo, Option<u64>) + Send + Sync + 'static,
    ) {
        let mut callbacks = self
            .shared
            .peer_left
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        callbacks.push(Arc::new(callback));
    }

    /// Has a callback run when the agent has ended, on the thread that has ended it: all calls have failed
    /// by then, and no thread of the agent runs any more. If it has ended already, the callback is dropped.
    pub fn on_end(&self, callback: impl FnOnce() + Send + 'static) {
        let mut callbacks = self
            .shared
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Under the lock: who ends the agent takes the callbacks after that.
        if self.shared.stage.load(Ordering::SeqCst) != STOPPED {
            callbacks.push(Box::new(callback));
        }
    }

    /// Has a job run soon, once, on a thread of the agent, as a callback of a future does; after the agent's
    /// end it is dropped, on this thread. Does not block. The joint end waits for it. A panic is logged.
    ///
    /// For what must not happen where it is found out, as in a destructor.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.shared
            .run_soon(Box::new(move || contained("a job", job)));
    }

    /// [`AgentHandle::spawn`] at a later time, or soon if that has passed. The joint end does not wait for
    /// what is not due yet; the agent's end drops it.
    pub fn spawn_at(&self, at: Instant, job: impl FnOnce() + Send + 'static) {
        self.shared
            .run_at(at, Box::new(move || contained("a job", job)));
    }

    /// A pending future, and what completes it. Its callbacks run on the agent's threads, and one of those
    /// that waits for it has another take its place, as with the future of a call.
    pub fn promise<T: Clone + Send + 'static>(&self) -> (Promise<T>, RpcFuture<T>) {
        RpcFuture::with_executor(self.shared.executor(), Hint::NONE)
    }

    /// Which registry the agent was started with.
    #[must_use]
    pub fn registry_id(&self) -> RegistryId {
        self.shared.registry.id()
    }

    /// For how long a worker is dialed: see [`AgentOptions::with_connect_timeout`].
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.shared.options.connect_timeout
    }

    /// The number that this worker's process has drawn for the agent, so that its messages are told from
    /// those of another process with the same name and id. Never 0.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.shared.incarnation
    }

    /// The incarnation of a worker's process, as it was when a connection to it was made last; `None`
    /// before the first one.
    #[must_use]
    pub fn incarnation_of(&self, worker: WorkerId) -> Option<u64> {
        if worker == self.shared.me.id {
            return Some(self.shared.incarnation);
        }
        let peer = self.shared.peer_by_id(worker.get())?;
        let state = peer.lock();
        state.pair.as_ref()?.peer_incarnation()
    }

    /// What has happened so far, in numbers.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.shared.metrics_snapshot()
    }

    pub(crate) fn answer_later(&self, call: &ServedCall, answer: Result<Bytes, HandlerError>) {
        self.shared.answer(call, answer);
    }
}

impl fmt::Debug for AgentHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AgentHandle").field(&self.shared.me).finish()
    }
}

/// Why an agent did not start.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name or the rank is none.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// It cannot listen.
    #[error("cannot listen for other workers: {0}")]
    Listen(#[from] ListenError),
    /// A socket of its own failed.
    #[error("cannot set up the sockets: {0}")]
    Socket(#[source] io::Error),
    /// The group was not joined.
    #[error(transparent)]
    Directory(Box<DirectoryError>),
    /// The store cannot be used.
    #[error("cannot use the store: {0}")]
    Store(#[source] StoreError),
    /// The system has no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The agent as its futures know it: they do not keep it alive.
struct Driver(Weak<Shared>);

impl From<DirectoryError> for StartError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(Box::new(error))
    }
}

impl Executor for Driver {
    fn execute(&self, job: Job) {
        match self.0.upgrade() {
            Some(shared) => shared.call_back(job),
            None => job(),
        }
    }

    fn drive(
        &self,
        is_complete: &dyn Fn() -> bool,
        deadline: Deadline,
        hint: Hint,
        block: &mut dyn FnMut(),
    ) {
        let Some(shared) = self.0.upgrade() else {
            return block();
        };
        if shared.pool.is_own_thread() {
            shared.flush_dirty();
        }
        let _waiting = shared.pool.enter_wait();
        shared.drive(is_complete, deadline, hint);
        if !is_complete() {
            block();
        }
    }
}

impl Shared {
    /// Whether it is the caller who has to end the agent: once, and not when it has ended. Waits while
    /// another thread is at it.
    fn take_turn_to_end(self: &Arc<Self>, deadline: Deadline) -> Result<bool, TerminationError> {
        let began = Instant::now();
        if self.is_running() && self.pool.is_own_thread() {
            return Err(self.busy(began.elapsed()));
        }
        let mut is_ending = self.is_ending.lock();
        while *is_ending && self.is_running() {
            let has_passed;
            (is_ending, has_passed) = self.is_ending.wait_until(is_ending, deadline);
            if has_passed && self.is_running() {
                return Err(self.busy(began.elapsed()));
            }
        }
        *is_ending = true;
        Ok(self.is_running())
    }

    fn busy(self: &Arc<Self>, elapsed: Duration) -> TerminationError {
        TerminationError::Busy {
            me: Box::new(self.me.clone()),
            round: 0,
            calls_out: termination::Activity::calls_out(self),
            elapsed,
        }
    }

    /// A join that failed is gone on with by the next one: the others wait in the same round.
    fn join(self: &Arc<Self>, deadline: Deadline) -> Result<(), TerminationError> {
        let began = Instant::now();
        let Some(stopped) = self.joint_end.begin(deadline) else {
            return Err(self.busy(began.elapsed()));
        };
        let begun = match stopped {
            Some(termination) => Ok(termination),
            None => self.directory.clone_store(deadline).map(|store| {
                let generation = self.joins.fetch_add(1, Ordering::SeqCst);
                let workers = self.directory.workers();
                Termination::new(store, generation, self.me.clone(), workers)
            }),
        };
        let mut termination = match begun {
            Ok(termination) => termination,
            Err(error) => {
                self.joint_end.end(None);
                return Err(error.into());
            }
        };
        let result = termination.run(self, deadline);
        self.joint_end.end(result.is_err().then_some(termination));
        result
    }

    /// Leaves a group whose members come and go, once the own calls have ended.
    fn leave(self: &Arc<Self>, deadline: Deadline) -> Result<(), TerminationError> {
        let began = Instant::now();
        if !self.activity.wait_idle(deadline) {
            return Err(self.busy(began.elapsed()));
        }
        self.directory.leave(deadline)?;
        Ok(())
    }

    /// Helps a thread that is about to wait for an answer.
    fn drive(self: &Arc<Self>, is_complete: &dyn Fn() -> bool, deadline: Deadline, hint: Hint) {
        self.flush_dirty();
        // The low half is the id.
        let peer = self
            .peer_by_id((hint.0 & u64::from(u32::MAX)) as u32)
            .filter(|peer| peer.hint() == hint && !peer.is_self);
        if let Some(peer) = peer {
            self.read_while_waiting(&peer, is_complete, deadline);
        }
    }

    fn metrics_snapshot(&self) -> MetricsSnapshot {
        let pool = self.pool.gauges();
        let gauges = Gauges {
            handler_queue_len: pool.queued,
            threads: pool.threads,
            threads_idle: pool.idle,
            threads_waiting: pool.waiting,
            retry_queue_len: self.retry.len(),
        };
        let peers = self.peers();
        let peers = peers
            .iter()
            .map(|peer| peer.metrics.snapshot(peer.info.clone()));
        self.metrics.snapshot(gauges, peers.collect())
    }

    /// Ends everything, once; who comes second waits for nothing.
    fn stop(self: &Arc<Self>) {
        if self
            .stage
            .compare_exchange(RUNNING, STOPPING, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            return;
        }
        self.activity.end_waits();
        // Who waits for its turn to end the agent need not wait any longer. Locked, so that it sleeps
        // already, or has seen the stage.
        drop(self.is_ending.lock());
        self.is_ending.notify_all();
        self.stop_timers();
        // Before the dials have ended, which can take a moment: nobody has to wait for that.
        self.end_connections();
        self.stop_dialing();
        self.pool.stop();
        self.stage.store(STOPPED, Ordering::SeqCst);
        // What a function or a callback that was still running began.
        self.end_connections();
        self.stop_timers();
        let ended = std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        for callback in ended {
            contained("a callback about the agent's end", callback);
        }
    }

    /// Says farewell to all peers, and fails the calls to them.
    fn end_connections(self: &Arc<Self>) {
        for peer in self.peers() {
            let mut state = peer.lock();
            if state.link.is_some() {
                state.outgoing.push_frame(&Frame::Goodbye { reason: 0 });
                self.flush_peer(&peer, state);
                // A thread that was at it takes the farewell along, if it is given the time to.
                state = peer.lock_flushed(Deadline::after(Instant::now(), FAREWELL_MAX));
            }
            if let Some(pair) = &mut state.pair {
                pair.close();
                if pair.state() == LinkState::Established {
                    pair.on_lost();
                }
            }
            let (established, calls) = state.cut();
            state.parked.clear();
            drop(state);
            if let Some(established) = established {
                self.sockets.close(&established);
            }
            for (call, outcome) in calls {
                let error = self.shut_down(&peer, &call.function, outcome);
                self.complete(&peer, call, Err(error));
            }
        }
    }
}

impl termination::Activity for Arc<Shared> {
    fn wait_idle(&self, by: Deadline) -> bool {
        self.activity.wait_idle(by)
    }

    fn calls_started(&self) -> u64 {
        self.activity.calls_started()
    }

    fn calls_out(&self) -> usize {
        let peers = self.peers();
        peers.iter().map(|peer| peer.lock().in_flight.len()).sum()
    }

    fn is_interrupted(&self) -> bool {
        !self.is_running()
    }

    fn dead(&self) -> Vec<WorkerInfo> {
        let mut dead = Vec::new();
        for peer in &self.peers() {
            let state = peer.lock();
            if state.is_dead || state.has_left {
                dead.push(peer.info.clone());
            } else if state.is_lost && state.dial.is_none() {
                // Nobody may call it any more: whether it is gone, a dial finds out until the next time.
                self.begin_dial(peer, state);
            }
        }
        dead
    }
}

fn deadline_of(timeout: Duration) -> Deadline {
    if timeout.is_zero() {
        Deadline::NEVER
    } else {
        Deadline::after(Instant::now(), timeout)
    }
}

/// What the others are told to connect to.
fn advertised_host(options: &AgentOptions) -> String {
    if let Some(host) = options.advertised_host.as_ref().or(options.host.as_ref()) {
        return host.clone();
    }
    match outward_address() {
        Ok(address) => address.to_string(),
        Err(error) => {
            log::warn!(
                "cannot find this machine's address ({error}): the others are told 127.0.0.1"
            );
            "127.0.0.1".to_owned()
        }
    }
}

/// The address from which this machine would reach others. Sends nothing: connecting a datagram socket
/// only chooses a route. The target is an address kept for documentation.
fn outward_address() -> io::Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9")?;
    Ok(socket.local_addr()?.ip())
}
