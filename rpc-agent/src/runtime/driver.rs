//! Locks a peer's state machine, passes it an input, unlocks it, and carries out the effects.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use c10d_socket::{Cancel, Credentials, SocketOptions};

use super::activity::Activity;
use super::activity::Stage;
use super::peers::Gathered;
use super::peers::{Core, CoreEffects, PeerEntry, PeerTable, State};
use super::retry_inbox::{Inbox, Input};
use super::sockets::Sockets;
use crate::clock::Clock;
use crate::directory::{Directory, Looks};
use crate::error::RpcError;
use crate::future::{Executor, Job, Promise, contained};
use crate::metrics::Metrics;
use crate::options::AgentOptions;
use crate::options::FaultInjector;
use crate::peer::{Config, ConnectionId, Count, Effect, Effects, IncomingLimits, Notice, Request};
use crate::pool::{Callback, Pool};
use crate::sync::Lock;
use crate::worker::{Destination, WorkerInfo};

/// A request to be run by the pool, and the peer that sent it.
pub(crate) struct Served {
    pub(crate) peer: Arc<PeerEntry>,
    pub(crate) request: Request,
}

/// Options of connections to other workers.
pub(super) struct DialOptions {
    pub(super) socket_options: SocketOptions,
    /// The credentials. With them, every connection uses TLS.
    pub(super) credentials: Option<Credentials>,
    pub(super) limits: IncomingLimits,
}

pub(crate) type OnLost = Arc<dyn Fn(&WorkerInfo, &str) + Send + Sync>;

pub(crate) type OnLeft = Arc<dyn Fn(&WorkerInfo, Option<u64>) + Send + Sync>;

/// Callbacks of the program about workers that leave or are lost, in the order of registration.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) lost: Lock<Vec<OnLost>>,
    pub(crate) left: Lock<Vec<OnLeft>>,
}

/// Carries out the effects of all peers of an agent.
pub(crate) struct Driver {
    pub(crate) config: Arc<Config>,
    pub(crate) directory: Directory,
    pub(crate) clock: Clock,
    pub(crate) stage: Stage,
    pub(crate) peers: PeerTable,
    pub(crate) sockets: Sockets,
    pub(crate) pool: Arc<Pool<Served>>,
    pub(crate) metrics: Metrics,
    pub(crate) activity: Arc<Activity>,
    pub(crate) listeners: Listeners,
    pub(super) dials: DialOptions,
    pub(super) retries: Inbox,
    pub(super) membership: Membership,
    /// For attempts to connect, which are no longer needed after the agent has ended.
    pub(super) this: Weak<Self>,
    /// Runs the callbacks of futures, and helps threads that wait for one.
    pub(super) executor: Arc<dyn Executor>,
    /// The timeout of calls without an explicit timeout.
    pub(super) timeout_ms: AtomicU64,
    pub(super) faults: Option<Arc<dyn FaultInjector>>,
    gathered: Gathered,
    /// Ends what the agent's threads wait for: it is ending.
    pub(super) ended: Cancel,
    /// Interrupts a shutdown's wait in the store.
    store_wait: Lock<Cancel>,
    /// Requests of all peers that have not begun.
    requests_queued: AtomicUsize,
}

/// The state of an agent that concerns the list of members.
#[derive(Debug, Default)]
pub(super) struct Membership {
    /// The checks of the list because of a Hello or a timeout.
    pub(super) looks: Lock<Looks>,
    /// The reason why the list could not be read the last time.
    pub(super) failure: Lock<Option<String>>,
    /// The change of the list that was checked last.
    pub(super) checked: AtomicU64,
    /// Whether it was logged that another process has replaced this one.
    pub(super) is_replaced: AtomicBool,
}

impl Driver {
    pub(super) fn new(
        config: Config,
        directory: Directory,
        sockets: Sockets,
        options: &AgentOptions,
        dials: DialOptions,
        this: &Weak<Self>,
    ) -> Self {
        let config = Arc::new(config);
        let workers = directory.workers().into_iter();
        let driver = Self {
            peers: PeerTable::new(&config, workers.chain([config.me.clone()])),
            clock: Clock::new(Instant::now()),
            stage: Stage::default(),
            sockets,
            pool: Pool::new(
                &options.name,
                options.handler_threads,
                options.threads_max,
                callers_back_max(),
            ),
            metrics: Metrics::default(),
            activity: Arc::default(),
            listeners: Listeners::default(),
            dials,
            retries: Inbox::default(),
            membership: Membership::default(),
            this: Weak::clone(this),
            executor: Arc::new(Weak::clone(this)),
            timeout_ms: AtomicU64::default(),
            faults: options.faults.clone(),
            gathered: Gathered::default(),
            ended: Cancel::new(),
            store_wait: Lock::new(Cancel::NEVER),
            requests_queued: AtomicUsize::new(0),
            config,
            directory,
        };
        driver.set_timeout(options.timeout);
        driver
    }

    /// This agent's own worker.
    pub(crate) fn me(&self) -> &WorkerInfo {
        &self.config.me
    }

    /// Ended by the end of the agent, and when a worker has left or the connection to it is lost.
    pub(super) fn begin_store_wait(&self) -> Cancel {
        let cancel = Cancel::new();
        *self.store_wait.lock() = cancel.clone();
        cancel
    }

    pub(super) fn end_store_wait(&self) {
        let cancel = self.store_wait.lock().clone();
        cancel.cancel();
    }

    /// Gives an input that has no effects to a peer's machine.
    pub(super) fn change<R>(&self, peer: &PeerEntry, input: impl FnOnce(&mut Core) -> R) -> R {
        self.locked(peer, |state| input(&mut state.core))
    }

    /// Gives an input to a peer's machine, and carries out what follows. The requests that may run go to the pool.
    pub(super) fn step<R>(&self, peer: &Arc<PeerEntry>, input: impl FnOnce(&mut Core) -> R) -> R {
        let mut effects = Effects::new();
        let result = self.input(peer, &mut effects, input);
        if !effects.is_empty() {
            let mut admitted = Vec::new();
            self.carry_out(peer, &mut effects, &mut admitted);
            if !admitted.is_empty() {
                self.pool.submit(admitted);
            }
        }
        result
    }

    /// [`Driver::step`], but the requests that may run go to `admitted`. `effects` is memory for them, empty before and
    /// afterwards.
    pub(super) fn step_with<R>(
        &self,
        peer: &Arc<PeerEntry>,
        effects: &mut CoreEffects,
        admitted: &mut impl Extend<Served>,
        input: impl FnOnce(&mut Core) -> R,
    ) -> R {
        let result = self.input(peer, effects, input);
        self.carry_out(peer, effects, admitted);
        result
    }

    /// Called before a caller that has borrowed the connection waits for the socket. Returns whether it also waits
    /// until the socket is writable, and the earliest deadline of a call. `None` when it must not wait: the
    /// connection has ended, or another thread is expiring calls. One of them may be the caller's own, and nothing
    /// that arrives on the connection reports that.
    pub(super) fn begin_lent_wait(
        &self,
        peer: &PeerEntry,
        connection: ConnectionId,
    ) -> Option<(bool, Option<u64>)> {
        self.locked(peer, |state| {
            if state.expiring > 0 {
                return None;
            }
            let for_output = state.core.connected_by(connection)?.waits_for_output();
            Some((for_output, state.core.next_deadline_ms()))
        })
    }

    /// Has the retry thread run a job at this time, unless the agent has ended before. The job does not block, and
    /// runs no code of the program.
    pub(super) fn run_at(&self, at: Instant, job: Job) {
        // Dropped without a lock otherwise: it may hold anything.
        drop(self.retries.send(Input::Job { at, job }));
    }

    /// Fails the calls whose deadline has passed.
    pub(super) fn expire_all(&self, now: Instant) {
        let now_ms = self.clock.ms_of(now);
        if !self.sockets.take_due(now_ms) {
            return;
        }
        let peers = self.peers.all();
        let next = peers.iter().filter_map(|peer| self.expire(peer, now_ms));
        self.sockets.expect_at(next.min());
    }

    /// Fails the calls to a peer whose deadline has passed; returns the next deadline.
    pub(super) fn expire(&self, peer: &Arc<PeerEntry>, now_ms: u64) -> Option<u64> {
        let mut effects = Effects::new();
        let next = {
            let mut state = peer.lock();
            let next = state.core.next_deadline_ms();
            if next.is_none_or(|next| next > now_ms) {
                return next;
            }
            state
                .core
                .step(&mut effects, false, |core| core.tick(now_ms));
            state.expiring += 1;
            state.core.next_deadline_ms()
        };
        self.carry_out(peer, &mut effects, &mut Vec::new());
        peer.lock().expiring -= 1;
        next
    }

    /// The peer of a worker that is known to exist. A worker of another name that had its id loses its connection.
    pub(super) fn peer_of(&self, worker: WorkerInfo) -> Arc<PeerEntry> {
        let (peer, replaced) = self.peers.place(worker);
        if let Some(replaced) = replaced {
            self.step(&replaced, Core::replaced);
        }
        peer
    }

    /// A thread is about to run a request. `None` when that must wait until the peer has read some of its answers.
    pub(crate) fn begin_request(&self, served: Served) -> Option<(Arc<PeerEntry>, Request)> {
        let Served { peer, request } = served;
        let request = self.change(&peer, |core| core.begin_request(request))?;
        Some((peer, request))
    }

    /// Refuses a request that no thread can run.
    pub(crate) fn refuse_request(&self, served: &Served, reason: Arc<str>) {
        self.step(&served.peer, |core| {
            core.refuse_admitted(served.request.route, reason)
        });
    }

    /// The error of a call to a worker that is not in the group.
    pub(super) fn no_such_worker(&self, to: &Destination<'_>) -> RpcError {
        let wanted = match to {
            Destination::Id(id) => format!("id {id}"),
            Destination::Name(name) => format!("name {name}"),
            Destination::Info(info) => format!("name {}", info.name),
        };
        RpcError::NoSuchWorker {
            me: Box::new(self.me().clone()),
            wanted: wanted.into(),
        }
    }

    /// Sends what waits for more to leave with it.
    pub(crate) fn flush(&self) {
        loop {
            let peers = self.gathered.take();
            if peers.is_empty() {
                return;
            }
            for peer in peers {
                self.step(&peer, Core::flush);
            }
        }
    }

    /// Whether something waits for more to leave with it.
    pub(crate) fn has_gathered(&self) -> bool {
        self.gathered.is_filled()
    }

    /// Whether a thread outside of the pool has gathered something since this was asked last.
    pub(crate) fn take_outsiders(&self) -> bool {
        self.gathered.take_outsiders()
    }

    /// Completes a call that has its result.
    pub(super) fn complete(&self, promise: &Promise<Bytes>, result: Result<Bytes, RpcError>) {
        match &result {
            Ok(_) => self.metrics.call_succeeded(),
            Err(error) => {
                self.metrics.call_failed(error);
                log::debug!("{}: {error}", self.me());
                self.suspect(error);
            }
        }
        promise.complete(result);
        // Callbacks of the future count as activity by now.
        self.activity.end();
    }

    /// Hands a callback to the pool, which runs it at once when it has stopped.
    pub(super) fn call_back(&self, callback: Callback) {
        self.pool.call_back(self.counted(callback));
    }

    /// Runs a job on a thread of the pool; after the agent's end it is dropped.
    pub(crate) fn spawn(&self, job: Callback) {
        if let Err(counted) = self.pool.queue_callback(self.counted(job)) {
            drop(counted);
            self.activity.end();
        }
    }

    /// Counts a job as activity from now on until it has run.
    fn counted(&self, job: Callback) -> Callback {
        self.activity.begin();
        let activity = Arc::clone(&self.activity);
        Box::new(move || {
            job();
            activity.end();
        })
    }

    fn input<R>(
        &self,
        peer: &PeerEntry,
        effects: &mut CoreEffects,
        input: impl FnOnce(&mut Core) -> R,
    ) -> R {
        let thread_flushes = self.pool.is_own_thread();
        self.locked(peer, |state| {
            state.core.step(effects, thread_flushes, input)
        })
    }

    /// Runs `change` under the peer's lock, with the work that each change requires before other threads see it.
    fn locked<R>(&self, peer: &PeerEntry, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = peer.lock();
        let queued_before = state.core.requests_queued();
        let result = change(&mut state);
        let queued = state.core.requests_queued();
        if let Some((socket, before, after)) = state.core.watch_change()
            && let Err(error) = self.sockets.watch(&socket, before, after)
        {
            // Without events the connection is of no use: shut down, it reports an error to the next thread that reads.
            log::error!("{}: cannot watch a connection: {error}", self.me());
            let _ = socket.stream.shutdown(Shutdown::Both);
        }
        peer.stepped(&mut state);
        drop(state);
        self.count_queued(queued_before, queued);
        result
    }

    fn count_queued(&self, before: usize, after: usize) {
        if after > before {
            let added = after - before;
            let queued = self.requests_queued.fetch_add(added, Ordering::Relaxed);
            self.metrics.handler_queue_seen(queued + added);
        } else if after < before {
            self.requests_queued
                .fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    fn carry_out(
        &self,
        peer: &Arc<PeerEntry>,
        effects: &mut CoreEffects,
        admitted: &mut impl Extend<Served>,
    ) {
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Send {
                    connection,
                    socket,
                    mut batch,
                } => {
                    let before = batch.sent_bytes();
                    let result = socket.write(&mut batch);
                    self.metrics.sent(batch.sent_bytes() - before);
                    if result.is_err() {
                        // It is over already, unless TLS has failed.
                        let _ = socket.stream.shutdown(Shutdown::Both);
                    }
                    self.input(peer, effects, |core| {
                        core.written(connection, batch, result)
                    });
                }
                Effect::SendSoon => self.gather(peer),
                Effect::Complete { call, result } => {
                    self.complete(&call.promise, result);
                }
                Effect::Admit(request) => admitted.extend([Served {
                    peer: Arc::clone(peer),
                    request,
                }]),
                Effect::Dial { dial, at } => self.dial(peer, dial, at),
                Effect::Close { socket, watched } => self.sockets.release(&socket, watched),
                Effect::Notify(notice) => self.notify(peer, notice),
                Effect::Count(Count::LateAnswer) => self.metrics.calls.late_responses.add(1),
                Effect::Count(Count::RequestRefused) => self.metrics.requests.refused.add(1),
                Effect::Count(Count::OwnRequest) => self.metrics.requests.received.add(1),
            }
        }
    }

    fn dial(&self, peer: &Arc<PeerEntry>, dial: u64, at: Instant) {
        let (pool, this, peer) = (Arc::clone(&self.pool), self.this.clone(), Arc::clone(peer));
        let attempt = move || {
            if let Some(driver) = this.upgrade() {
                driver.attempt(&peer, dial);
            }
        };
        let begin = move || pool.dial(Box::new(attempt));
        if at <= Instant::now() {
            begin();
        } else {
            self.run_at(at, Box::new(begin));
        }
    }

    /// A thread of the pool flushes before it sleeps; the standby thread does if that takes long.
    fn gather(&self, peer: &Arc<PeerEntry>) {
        self.gathered.push(peer, !self.pool.is_own_thread());
        if !self.pool.is_watched() {
            self.flush();
        }
    }

    fn notify(&self, peer: &Arc<PeerEntry>, notice: Notice) {
        let (me, info) = (self.me(), &peer.info);
        match notice {
            Notice::Connected {
                address,
                is_reconnect,
            } => {
                log::debug!("{me}: connected to {info} at {address}");
                self.metrics.connection_opened(is_reconnect);
            }
            Notice::Left { incarnation } => {
                self.end_store_wait();
                let callbacks = self.listeners.left.lock().clone();
                for callback in callbacks {
                    let info = info.clone();
                    self.call_back(Box::new(move || {
                        contained("the callback of `on_peer_left`", || {
                            callback(&info, incarnation);
                        });
                    }));
                }
            }
            Notice::Lost {
                cause,
                calls_failed,
            } => {
                self.metrics.network.connections_lost.add(1);
                self.end_store_wait();
                if self.stage.is_running() {
                    log::warn!("{me}: {info}: {cause}; {calls_failed} calls fail");
                }
                let callbacks = self.listeners.lost.lock().clone();
                for callback in callbacks {
                    let (info, cause) = (info.clone(), Arc::clone(&cause));
                    self.call_back(Box::new(move || {
                        contained("the callback of `on_peer_lost`", || callback(&info, &cause));
                    }));
                }
            }
            Notice::Unreachable {
                cause,
                calls_failed,
            } => {
                // Without a call nothing is to be done.
                let level = if calls_failed > 0 {
                    log::Level::Warn
                } else {
                    log::Level::Debug
                };
                log::log!(
                    level,
                    "{me}: cannot connect to {info}: {cause}; {calls_failed} calls fail"
                );
            }
        }
    }
}

/// Returns how many callbacks run at a time: one for each processor, and at least two, so that a long callback does
/// not delay all.
fn callers_back_max() -> usize {
    thread::available_parallelism().map_or(2, |processors| processors.get().max(2))
}
