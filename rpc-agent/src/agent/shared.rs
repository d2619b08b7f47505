//! What all threads and handles of an agent share, and the way of a call from its caller to the wire and
//! back.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::Deadline;
use c10d_store::Store;

use super::activity::Activity;
use super::dial::Dialers;
use super::joint_end::JointEndTurn;
use super::link::not_connected;
use super::options::AgentOptions;
use super::peer::{Peer, PeerState, PendingCall, Request, ServedCall, WayBack};
use super::poller::Sockets;
use super::retries::{Delayed, RetriedCall};
use crate::directory::Directory;
use crate::error::{CallMessage, CallSite, NotSent, Outcome, RpcError};
use crate::fault::{Fault, Leg};
use crate::future::{Executor, FutureMessage, Hint, Job, RpcFuture, contained};
use crate::in_flight::Completed;
use crate::incoming::IncomingLimits;
use crate::metrics::Metrics;
use crate::pool::{Callback, Pool};
use crate::registry::{FUNCTION_NAME_BYTES_MAX, Registry};
use crate::retry::RetryThread;
use crate::sync::Monitor;
use crate::timer::TimerThread;
use crate::wire::{self, ErrorKind};
use crate::worker::{Destination, WorkerInfo};

/// The life of an agent.
pub(crate) const RUNNING: u8 = 0;
pub(crate) const STOPPING: u8 = 1;
pub(crate) const STOPPED: u8 = 2;

/// Why there is no connection to a worker whose id another one has by now.
const REPLACED: &str = "another worker has taken its place";

/// Beyond so many unsent bytes an answer does not wait for others to leave with it.
const CORKED_BYTES_MAX: u64 = 32 << 10;

/// From so many calls in flight to one worker on, a further one waits a moment for more to leave with it:
/// until its caller waits for an answer, an answer comes, or the standby thread looks, a quarter of a
/// millisecond later at most. A write costs as much as the rest of a small call.
const GATHERED_CALLS_MIN: usize = 4;

pub(crate) struct Shared {
    pub(crate) me: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) options: AgentOptions,
    pub(crate) limits: IncomingLimits,
    pub(crate) registry: Registry,
    pub(crate) directory: Directory,
    /// Open for as long as the agent: it may host the server that the others use.
    pub(crate) _store: Arc<dyn Store>,
    /// How often the group was joined for its end.
    pub(crate) joins: AtomicU64,
    pub(crate) joint_end: JointEndTurn,
    /// A thread is at the agent's orderly end.
    pub(crate) is_ending: Monitor<bool>,
    pub(crate) sockets: Sockets,
    pub(crate) pool: Arc<Pool<Request>>,
    pub(crate) dialers: Dialers,
    pub(crate) retry: RetryThread<Box<RetriedCall>>,
    pub(crate) timer: TimerThread<Delayed>,
    /// Of the next call with retries.
    pub(crate) retry_seed: AtomicU64,
    pub(crate) metrics: Metrics,
    pub(crate) activity: Activity,
    /// [`RUNNING`] and what follows; never goes back.
    pub(crate) stage: AtomicU8,
    /// Milliseconds; zero: none.
    timeout_ms: AtomicU64,
    /// By worker id.
    peers: RwLock<Vec<Option<Arc<Peer>>>>,
    /// Peers with something unsent that waits for more to leave with it.
    dirty: Mutex<Vec<Arc<Peer>>>,
    has_dirty: AtomicBool,
    /// Something was put into `dirty` by a thread that is not the pool's.
    has_gathered: AtomicBool,
    /// Times of calls are counted from here, in milliseconds.
    pub(crate) epoch: Instant,
    /// Requests of all peers that no thread has taken yet.
    pub(crate) requests_queued: AtomicUsize,
    pub(crate) peer_lost: Mutex<Vec<PeerLostCallback>>,
    pub(crate) peer_left: Mutex<Vec<PeerLeftCallback>>,
    pub(crate) ended: Mutex<Vec<Job>>,
    executor: Arc<dyn Executor>,
}

pub(crate) type PeerLostCallback = Arc<dyn Fn(&WorkerInfo, &str) + Send + Sync>;

pub(crate) type PeerLeftCallback = Arc<dyn Fn(&WorkerInfo, Option<u64>) + Send + Sync>;

pub(crate) struct Parts {
    pub(crate) me: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) options: AgentOptions,
    pub(crate) registry: Registry,
    pub(crate) directory: Directory,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sockets: Sockets,
    pub(crate) retry_seed: u64,
}

impl Shared {
    pub(crate) fn new(parts: Parts, executor: Arc<dyn Executor>) -> Self {
        let now = Instant::now();
        let Parts {
            me,
            incarnation,
            options,
            registry,
            directory,
            store,
            sockets,
            retry_seed,
        } = parts;
        let shared = Self {
            limits: IncomingLimits {
                message_bytes_max: options.message_bytes_max,
                ..IncomingLimits::default()
            },
            pool: Pool::new(
                me.name.as_str(),
                options.handler_threads,
                options.threads_max,
            ),
            dialers: Dialers::default(),
            metrics: Metrics::default(),
            activity: Activity::default(),
            stage: AtomicU8::new(RUNNING),
            timeout_ms: AtomicU64::new(to_ms(options.timeout)),
            peers: RwLock::default(),
            dirty: Mutex::default(),
            has_dirty: AtomicBool::new(false),
            has_gathered: AtomicBool::new(false),
            epoch: now,
            requests_queued: AtomicUsize::new(0),
            peer_lost: Mutex::default(),
            peer_left: Mutex::default(),
            ended: Mutex::default(),
            executor,
            me,
            incarnation,
            options,
            registry,
            directory,
            _store: store,
            joins: AtomicU64::new(0),
            joint_end: JointEndTurn::default(),
            is_ending: Monitor::default(),
            sockets,
            retry: RetryThread::new(),
            timer: TimerThread::new("rpc-timer"),
            retry_seed: AtomicU64::new(retry_seed),
        };
        let me = shared.me.clone();
        let workers = shared.directory.workers();
        for worker in workers.into_iter().chain([me]) {
            shared.take_place(worker);
        }
        shared
    }

    pub(crate) fn is_running(&self) -> bool {
        self.stage.load(Ordering::Acquire) == RUNNING
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn set_timeout(&self, timeout: Duration) {
        self.timeout_ms.store(to_ms(timeout), Ordering::Relaxed);
    }

    /// Whole milliseconds since the agent's start, rounded down.
    pub(crate) fn ms_of(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// All peers, this worker among them.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.iter().flatten().cloned().collect()
    }

    pub(crate) fn peer_by_id(&self, id: u32) -> Option<Arc<Peer>> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.get(usize::try_from(id).ok()?)?.clone()
    }

    /// The peer of a worker that is known to exist. One that has another name than before takes the
    /// former one's place, whose connection ends.
    pub(crate) fn peer_of(self: &Arc<Self>, worker: WorkerInfo) -> Arc<Peer> {
        let (peer, replaced) = self.take_place(worker);
        if let Some(replaced) = replaced {
            let mut state = replaced.lock();
            state.is_replaced = true;
            state.dial = None;
            let link = state.link.as_ref().map(|link| Arc::clone(&link.link));
            if let Some(link) = link {
                drop(state);
                let error = io::Error::new(io::ErrorKind::ConnectionReset, REPLACED);
                self.lose(&replaced, &link, error);
            } else {
                let (_, calls) = state.cut();
                drop(state);
                let cause = REPLACED.into();
                for (call, _) in calls {
                    let error = not_connected(&replaced, &call, &cause);
                    self.complete(&replaced, call, Err(error));
                }
            }
        }
        peer
    }

    /// The peer of a worker, and the one whose place it takes.
    fn take_place(&self, worker: WorkerInfo) -> (Arc<Peer>, Option<Arc<Peer>>) {
        if let Some(peer) = self.peer_by_id(worker.id.get())
            && peer.info == worker
        {
            return (peer, None);
        }
        let index = worker.id.get() as usize;
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        if peers.len() <= index {
            peers.resize(index + 1, None);
        }
        match &peers[index] {
            Some(peer) if peer.info == worker => (Arc::clone(peer), None),
            _ => {
                let predecessors = peers[index]
                    .as_ref()
                    .map_or(0, |peer| peer.predecessors.wrapping_add(1));
                let peer = Peer::new(worker, &self.me, self.incarnation, predecessors);
                let peer = Arc::new(peer);
                let replaced = peers[index].replace(Arc::clone(&peer));
                (peer, replaced)
            }
        }
    }

    /// Finds the worker that a call is for.
    pub(crate) fn find(self: &Arc<Self>, to: Destination<'_>) -> Result<Arc<Peer>, RpcError> {
        let known = match &to {
            // The list of members tells who has left, and whose the name or the id is since.
            to if self.options.world_size.is_none() => {
                self.directory.find(to).map(|worker| self.peer_of(worker))
            }
            Destination::Id(id) => self.peer_by_id(*id),
            Destination::Info(info) => self
                .peer_by_id(info.id.get())
                .filter(|peer| peer.info == **info),
            Destination::Name(name) => {
                let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
                let named = |peer: &&Arc<Peer>| peer.info.name.as_str() == *name;
                peers.iter().flatten().find(named).cloned()
            }
        };
        if let Some(peer) = known {
            return Ok(peer);
        }
        let once = Deadline::at(self.epoch);
        match self.directory.find_or_wait(&to, once) {
            Ok(Some(worker)) => Ok(self.peer_of(worker)),
            Ok(None) => Err(self.no_such_worker(&to)),
            Err(error) => {
                log::warn!("{}: {error}", self.me);
                Err(self.no_such_worker(&to))
            }
        }
    }

    pub(crate) fn no_such_worker(&self, to: &Destination<'_>) -> RpcError {
        let wanted = match to {
            Destination::Id(id) => format!("id {id}"),
            Destination::Name(name) => format!("name {name}"),
            Destination::Info(info) => format!("name {}", info.name),
        };
        RpcError::NoSuchWorker {
            me: Box::new(self.me.clone()),
            wanted: wanted.into(),
        }
    }

    /// Makes a call.
    pub(crate) fn call(
        self: &Arc<Self>,
        to: Destination<'_>,
        function: &str,
        payload: Bytes,
        timeout: Option<Duration>,
    ) -> FutureMessage {
        match self.find(to) {
            Ok(peer) => self.call_peer(&peer, function, payload, timeout),
            Err(error) => self.failed(error),
        }
    }

    /// A future that has failed.
    pub(crate) fn failed(self: &Arc<Self>, error: RpcError) -> FutureMessage {
        let (promise, future) = RpcFuture::with_executor(self.executor(), Hint::NONE);
        promise.complete(Err(error));
        future
    }

    pub(crate) fn executor(&self) -> Option<Arc<dyn Executor>> {
        Some(Arc::clone(&self.executor))
    }

    /// Makes a call to a worker that is known.
    pub(crate) fn call_peer(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        function: &str,
        payload: Bytes,
        timeout: Option<Duration>,
    ) -> FutureMessage {
        let (promise, future) = RpcFuture::with_executor(self.executor(), peer.hint());
        let timeout = timeout.unwrap_or_else(|| self.timeout());
        let began = Instant::now();
        self.metrics.call_started(&peer.metrics);
        self.activity.begin_call();
        let mut state = peer.lock();
        let function = state.shared_name(function);
        let mut call = PendingCall {
            promise,
            function: Arc::clone(&function),
            began,
            timeout,
            is_repeated: false,
        };
        let checked = if state.is_replaced {
            Err(not_connected(peer, &call, &REPLACED.into()))
        } else {
            self.check_call(peer, &function, payload.len())
        };
        if let Err(error) = checked {
            drop(state);
            self.complete(peer, call, Err(error));
            return future;
        }
        let mut copies = 1;
        let mut cuts = false;
        if let Some(faults) = &self.options.faults {
            match faults.decide(Leg::Request, &function, peer.info.id, &payload) {
                Fault::Deliver => {}
                Fault::Fail => {
                    drop(state);
                    let error = RpcError::NotSent {
                        call: peer.site(&function),
                        cause: NotSent::Injected,
                    };
                    self.complete(peer, call, Err(error));
                    return future;
                }
                Fault::Lose => copies = 0,
                Fault::Duplicate { copies: more } => {
                    copies += more;
                    call.is_repeated = true;
                }
                Fault::Cut => cuts = true,
                Fault::Delay(delay) => {
                    let id = state
                        .in_flight
                        .insert(self.deadline_ms(began, timeout), call)
                        .get();
                    drop(state);
                    self.expect_deadline(began, timeout);
                    let delayed = Delayed::Request {
                        peer: Arc::clone(peer),
                        id,
                        function,
                        payload,
                        timeout: match timeout.saturating_sub(delay) {
                            left if timeout.is_zero() => left,
                            left => left.max(Duration::from_millis(1)),
                        },
                    };
                    // After a stop the call fails with all others.
                    let _ = self.timer.schedule(Instant::now() + delay, delayed);
                    return future;
                }
            }
        }
        let waiting_bytes = state.outgoing.unsent_bytes();
        if waiting_bytes + payload.len() as u64 > self.options.backlog_bytes_max
            && waiting_bytes > 0
        {
            drop(state);
            let error = RpcError::NotSent {
                call: peer.site(&function),
                cause: NotSent::Backlog {
                    waiting_bytes,
                    max_bytes: self.options.backlog_bytes_max,
                },
            };
            self.complete(peer, call, Err(error));
            return future;
        }
        let call_id = state
            .in_flight
            .insert(self.deadline_ms(began, timeout), call);
        let id = call_id.get();
        if !self.is_running() {
            // The end may have failed all calls just before this one came.
            let call = state.in_flight.complete(call_id);
            drop(state);
            if let Completed::Call(call) = call {
                let error = self.shut_down(peer, &call.function, Outcome::NotExecuted);
                self.complete(peer, call, Err(error));
            }
            return future;
        }
        self.send_request(peer, state, id, &function, &payload, timeout, copies);
        self.expect_deadline(began, timeout);
        if cuts {
            self.cut_for_test(peer);
        }
        future
    }

    /// Gives a request to the connection, or to this very worker.
    #[expect(clippy::too_many_arguments, reason = "all of them make up one request")]
    pub(crate) fn send_request(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        mut state: MutexGuard<'_, PeerState>,
        id: u64,
        function: &Arc<str>,
        payload: &Bytes,
        timeout: Duration,
        copies: u32,
    ) {
        let budget_ms = u32::try_from(to_ms(timeout)).unwrap_or(u32::MAX);
        if peer.is_self {
            drop(state);
            for _ in 0..copies {
                self.serve_own(peer, id, budget_ms, function, payload.clone());
            }
            return;
        }
        for _ in 0..copies {
            state
                .outgoing
                .push_request(id, budget_ms, function, payload.clone());
        }
        if state.link.is_some() {
            self.flush_soon(peer, state);
        } else if state.dial.is_none() {
            self.begin_dial(peer, state);
        }
    }

    fn check_call(
        &self,
        peer: &Peer,
        function: &Arc<str>,
        payload_bytes: usize,
    ) -> Result<(), RpcError> {
        if !self.is_running() {
            return Err(self.shut_down(peer, function, Outcome::NotExecuted));
        }
        let bytes_max = peer.message_bytes_max(self.options.message_bytes_max);
        if payload_bytes as u64 > bytes_max {
            return Err(RpcError::TooLarge {
                call: peer.site(function),
                message: CallMessage::Request,
                bytes: Some(payload_bytes as u64),
                bytes_max,
            });
        }
        if function.is_empty() || function.len() > FUNCTION_NAME_BYTES_MAX {
            return Err(RpcError::NoSuchFunction {
                call: peer.site(function),
            });
        }
        Ok(())
    }

    pub(crate) fn shut_down(&self, peer: &Peer, function: &Arc<str>, outcome: Outcome) -> RpcError {
        RpcError::Shutdown {
            call: peer.site(function),
            outcome,
        }
    }

    /// Completes a call that has been taken out of its table.
    pub(crate) fn complete(&self, peer: &Peer, call: PendingCall, result: Result<Bytes, RpcError>) {
        match &result {
            Ok(_) => self
                .metrics
                .call_succeeded(&peer.metrics, call.began.elapsed()),
            Err(error) => {
                self.metrics.call_failed(&peer.metrics, error);
                log::debug!("{}: {error}", self.me);
            }
        }
        call.promise.complete(result);
        // Callbacks of the future have begun to count before.
        self.activity.end();
    }

    /// The error that a peer answered with.
    pub(crate) fn error_of(
        &self,
        peer: &Peer,
        call: &PendingCall,
        kind: ErrorKind,
        text: Arc<str>,
    ) -> RpcError {
        let site: Box<CallSite> = peer.site(&call.function);
        match kind {
            ErrorKind::Handler | ErrorKind::Panicked => RpcError::Remote {
                call: site,
                message: text,
                panicked: kind == ErrorKind::Panicked,
            },
            ErrorKind::NoSuchFunction => RpcError::NoSuchFunction { call: site },
            ErrorKind::Rejected => RpcError::Rejected {
                call: site,
                reason: text,
            },
            ErrorKind::AnswerTooLarge { bytes } => RpcError::TooLarge {
                call: site,
                message: CallMessage::Answer,
                bytes,
                bytes_max: peer.message_bytes_max(self.options.message_bytes_max),
            },
            ErrorKind::DeadlinePassed => RpcError::Timeout {
                call: site,
                after: call.timeout,
                outcome: Outcome::NotExecuted,
                cause: Some("its deadline had passed before the function could begin".into()),
            },
        }
    }

    /// When a call is to expire, in milliseconds since the agent's start, rounded up.
    fn deadline_ms(&self, began: Instant, timeout: Duration) -> Option<u64> {
        if timeout.is_zero() {
            return None;
        }
        let at = began
            .checked_add(timeout)?
            .saturating_duration_since(self.epoch);
        u64::try_from(at.as_nanos().div_ceil(1_000_000)).ok()
    }

    fn expect_deadline(&self, began: Instant, timeout: Duration) {
        if let Some(at) = self.deadline_ms(began, timeout) {
            self.sockets.expect_at(at);
        }
    }

    /// The time that is so many milliseconds after the agent's start.
    pub(crate) fn at_ms(&self, ms: u64) -> Deadline {
        Deadline::after(self.epoch, Duration::from_millis(ms))
    }

    /// Fails the calls whose time is up; returns when the next one's is.
    pub(crate) fn expire(&self, now: Instant) -> Option<u64> {
        let now_ms = self.ms_of(now);
        let peers = self.peers();
        peers
            .iter()
            .filter_map(|peer| self.expire_peer(peer, now_ms))
            .min()
    }

    /// Fails the calls to a peer whose time is up; returns when the next one's is.
    pub(crate) fn expire_peer(&self, peer: &Peer, now_ms: u64) -> Option<u64> {
        let mut state = peer.lock();
        let next = state.in_flight.next_deadline_ms();
        if next.is_none_or(|next| next > now_ms) {
            return next;
        }
        let expired = state.in_flight.expire(now_ms);
        let ids: HashSet<u64> = expired.iter().map(|(id, _)| id.get()).collect();
        let mut unsent = state.outgoing.withdraw(&ids);
        let mut cause = None;
        if state.link.is_none() && !peer.is_self {
            unsent = ids.into_iter().collect();
            cause = Some(
                state
                    .last_failure
                    .clone()
                    .unwrap_or_else(|| "no connection has been made yet".into()),
            );
        } else if !unsent.is_empty() {
            cause = Some("the worker does not read what is sent to it".into());
        }
        unsent.sort_unstable();
        let next = state.in_flight.next_deadline_ms();
        state.expiring += 1;
        drop(state);
        for (id, call) in expired {
            let is_unsent = !call.is_repeated && unsent.binary_search(&id.get()).is_ok();
            let error = RpcError::Timeout {
                call: peer.site(&call.function),
                after: call.timeout,
                outcome: if is_unsent {
                    Outcome::NotExecuted
                } else {
                    Outcome::Unknown
                },
                cause: cause.clone().filter(|_| is_unsent),
            };
            self.complete(peer, call, Err(error));
        }
        peer.lock().expiring -= 1;
        next
    }

    /// Sends what a peer's queue holds: at once, or together with what else this thread produces.
    pub(crate) fn flush_soon(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        mut state: MutexGuard<'_, PeerState>,
    ) {
        if state.is_flushing {
            // Who is at it takes this along.
            return;
        }
        if state.outgoing.unsent_bytes() >= CORKED_BYTES_MAX {
            return self.flush_peer(peer, state);
        }
        let is_own = self.pool.is_own_thread();
        if !is_own && state.in_flight.len() < GATHERED_CALLS_MIN {
            return self.flush_peer(peer, state);
        }
        let was_dirty = std::mem::replace(&mut state.is_dirty, true);
        drop(state);
        if !was_dirty {
            self.lock_dirty().push(Arc::clone(peer));
            self.has_dirty.store(true, Ordering::SeqCst);
        }
        // A thread of the pool flushes before it rests; if that takes long, the standby thread does.
        if !is_own && !self.has_gathered.load(Ordering::Relaxed) {
            self.has_gathered.store(true, Ordering::Relaxed);
        }
        if !self.pool.is_watched() {
            self.flush_dirty();
        }
    }

    pub(crate) fn has_dirty(&self) -> bool {
        self.has_dirty.load(Ordering::SeqCst)
    }

    pub(crate) fn has_gathered(&self) -> bool {
        self.has_gathered.swap(false, Ordering::Relaxed)
    }

    /// Sends what waits for more to leave with it.
    pub(crate) fn flush_dirty(self: &Arc<Self>) {
        while self.has_dirty.load(Ordering::SeqCst) && self.has_dirty.swap(false, Ordering::SeqCst)
        {
            let dirty = std::mem::take(&mut *self.lock_dirty());
            for peer in dirty {
                let mut state = peer.lock();
                state.is_dirty = false;
                self.flush_peer(&peer, state);
            }
        }
    }

    fn lock_dirty(&self) -> MutexGuard<'_, Vec<Arc<Peer>>> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a callback to the pool, or runs it when there is no pool any more.
    pub(crate) fn call_back(self: &Arc<Self>, callback: Callback) {
        if self.stage.load(Ordering::Acquire) == STOPPED {
            callback();
            return;
        }
        self.activity.begin();
        let shared = Arc::clone(self);
        let counted = move || {
            callback();
            shared.activity.end();
        };
        self.pool.call_back(Box::new(counted));
    }

    /// Has a job run on a thread of the pool; after the agent's end it is dropped.
    pub(crate) fn run_soon(self: &Arc<Self>, job: Callback) {
        self.activity.begin();
        let shared = Arc::clone(self);
        let counted = move || {
            job();
            shared.activity.end();
        };
        if let Err(counted) = self.pool.queue_callback(Box::new(counted)) {
            drop(counted);
            self.activity.end();
        }
    }

    /// Tells who wants to know that a worker has left in order.
    pub(crate) fn tell_peer_left(self: &Arc<Self>, peer: &Arc<Peer>, incarnation: Option<u64>) {
        let callbacks = self
            .peer_left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for callback in callbacks {
            let info = peer.info.clone();
            self.call_back(Box::new(move || {
                contained("a callback about a worker that has left", || {
                    callback(&info, incarnation);
                });
            }));
        }
    }

    /// Tells who wants to know that a worker's connection ended without a farewell.
    pub(crate) fn tell_peer_lost(self: &Arc<Self>, peer: &Arc<Peer>, cause: &str) {
        let callbacks = self
            .peer_lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for callback in callbacks {
            let info = peer.info.clone();
            let cause = cause.to_owned();
            self.call_back(Box::new(move || {
                contained("a callback about a lost worker", || callback(&info, &cause));
            }));
        }
    }

    /// The deadline that a request's budget means here.
    pub(crate) fn served_until(arrived_at: Instant, budget_ms: u32) -> Deadline {
        if budget_ms == 0 {
            Deadline::NEVER
        } else {
            Deadline::after(arrived_at, Duration::from_millis(u64::from(budget_ms)))
        }
    }

    fn serve_own(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        id: u64,
        budget_ms: u32,
        function: &Arc<str>,
        payload: Bytes,
    ) {
        let arrived_at = Instant::now();
        let link = Weak::new();
        let way_back = WayBack { link, id };
        if let Some(request) = self.admit(peer, way_back, budget_ms, function, payload, arrived_at)
        {
            self.pool.submit([request]);
        }
    }

    /// Makes a request of what came, or answers that it is not taken.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        way_back: WayBack,
        budget_ms: u32,
        function: &str,
        payload: Bytes,
        arrived_at: Instant,
    ) -> Option<Request> {
        self.metrics.requests_received(1);
        let Some(function) = self.registry.find(function) else {
            self.refuse_request(peer, &way_back, ErrorKind::NoSuchFunction, "");
            return None;
        };
        let call = ServedCall {
            peer: Arc::clone(peer),
            way_back,
            function: Arc::clone(function),
            deadline: Self::served_until(arrived_at, budget_ms),
            arrived_at,
        };
        let request = Request { call, payload };
        let mut state = peer.lock();
        if state.requests_queued >= self.options.requests_queued_max {
            drop(state);
            self.refuse_request(
                peer,
                &request.call.way_back,
                ErrorKind::Rejected,
                &format!(
                    "{} requests of this worker wait already",
                    self.options.requests_queued_max
                ),
            );
            return None;
        }
        state.requests_queued += 1;
        let queued = self.requests_queued.fetch_add(1, Ordering::Relaxed) + 1;
        self.metrics.handler_queue_seen(queued);
        if state.outgoing.unsent_bytes() > self.options.backlog_bytes_max {
            // Its answers would pile up here: it has to read some first.
            state.parked.push_back(request);
            return None;
        }
        Some(request)
    }
}

impl Shared {
    /// Answers that a request is not taken. A refusal waits for no thread and has no place in a queue, so a
    /// worker that asks on and on and reads none of them loses its connection.
    fn refuse_request(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        way_back: &WayBack,
        kind: ErrorKind,
        text: &str,
    ) {
        self.metrics.request_refused();
        let mut state = peer.lock();
        if state.outgoing.unsent_bytes() > self.options.backlog_bytes_max {
            state.refused_unread += 1;
            if state.refused_unread > self.options.requests_queued_max && state.leads(way_back) {
                let link = state.link.as_ref().map(|link| Arc::clone(&link.link));
                drop(state);
                if let Some(link) = link {
                    let text =
                        "it reads nothing, and more requests of it were refused than may wait";
                    let error = io::Error::new(io::ErrorKind::ConnectionAborted, text);
                    self.lose(peer, &link, error);
                }
                return;
            }
        }
        drop(state);
        self.answer_error(peer, way_back, kind, text);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("me", &self.me)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// Rounded up, so that no time becomes "none".
pub(crate) fn to_ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

const _: () = assert!(FUNCTION_NAME_BYTES_MAX <= wire::FUNCTION_NAME_BYTES_MAX);
