//! The connections of one store, shared by its threads.
//!
//! The shell around [`Lanes`]: locks, notifies and connects. The lock is never held across a system
//! call.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectError, ConnectOptions, Credentials, Deadline, Dialer, HostPort, OtherProcess,
    Process, TlsClient, Watch,
};

use super::closer::Closer;
use super::connection::{Connection, Failure, Hello, REFUSED_WRITE};
use super::lanes::{Lanes, Need, Take, Wait};
use super::link::ConnectionEnds;
use super::resumed::Channel;
use super::stream::{Stream, is_closed_by_peer};
use crate::address::Lookup;
use crate::wire::capability;

#[derive(Debug)]
pub(super) struct Pool {
    target: HostPort,
    pub(super) options: PoolOptions,
    shared: Mutex<Shared>,
    lane_changed: Condvar,
    /// The pool has ended, or a call was cancelled.
    has_ended: Condvar,
    /// The process of the pool: only this process has the threads that hold the lock and share the connections.
    process: Process,
}

/// How lanes are opened.
#[derive(Debug)]
pub(super) struct PoolOptions {
    pub(super) connect_options: ConnectOptions,
    pub(super) tls: Option<TlsClient>,
    /// What `tls` was made of.
    pub(super) credentials: Option<Credentials>,
    pub(super) reply_bytes_max: usize,
    /// How long a lane tries to survive the loss of its connection.
    pub(super) resume: Option<Duration>,
    /// A lost connection does not end the pool.
    pub(super) reconnects: bool,
    /// The server is looked up, and followed.
    pub(super) lookup: Option<Arc<dyn Lookup>>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    lanes: Lanes<ThreadId>,
    /// The connection of each lane while no call uses it; `None` before it is opened.
    idle: Vec<Option<Connection>>,
    /// Closes each lane's connection, in use or not.
    closers: Vec<Option<Closer>>,
    /// Wakes the call that waits on a lane.
    wakers: Vec<Option<Waker>>,
    /// The number of threads that wait for `lane_changed`. With none, a notification makes no system call.
    waiting_for_lane: usize,
    /// The address of the first connection. All later connections use it: a name can have several
    /// addresses, and another address is another server.
    pub(super) server: Option<HostPort>,
    /// The ends of the first connection.
    ends: Option<ConnectionEnds>,
    /// The server does not support the handshake with PING.
    wants_plain_hello: bool,
    /// The server has no sessions.
    pub(super) has_no_sessions: bool,
    /// The server has WAIT_CHANGE, by its latest handshake.
    has_wait_change: bool,
    /// How often a pool that reconnects has lost its connections.
    losses: u64,
    /// Why every call fails from now on.
    pub(super) ended: Option<Ended>,
}

/// Why a pool has ended.
#[derive(Debug, Clone)]
pub(super) enum Ended {
    /// The process closed the store.
    Closed,
    /// The connection to the server was lost.
    Lost { kind: io::ErrorKind, text: String },
}

/// Why no lane was available.
#[derive(Debug)]
pub(super) enum PoolError {
    Ended(Ended),
    /// A forked child called.
    OtherProcess(OtherProcess),
    Connect(ConnectError),
    Failure(Failure),
    /// Other calls held every lane until the deadline.
    TimedOut,
    /// The call was cancelled, and had no effect.
    Interrupted,
    /// END_WAITS has ended the wait.
    WaitEnded,
}

impl From<OtherProcess> for PoolError {
    fn from(error: OtherProcess) -> Self {
        Self::OtherProcess(error)
    }
}

impl From<Failure> for PoolError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Why a call has to end its wait early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Called {
    /// Another call needs the lane.
    GiveWay,
    /// The call was cancelled.
    Cancelled,
}

/// Wakes the threads that wait for a lane or sleep.
impl Wake for Pool {
    fn wake(self: Arc<Self>) {
        drop(self.lock());
        self.lane_changed.notify_all();
        self.has_ended.notify_all();
    }
}

impl Pool {
    /// Connects the first lane.
    pub(super) fn open(
        target: HostPort,
        options: PoolOptions,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Arc<Self>, PoolError> {
        let pool = Arc::new(Self {
            target,
            options,
            shared: Mutex::default(),
            lane_changed: Condvar::new(),
            has_ended: Condvar::new(),
            process: Process::this(),
        });
        drop(pool.take(Need::Answer, deadline, cancel)?);
        Ok(pool)
    }

    pub(super) const fn target(&self) -> &HostPort {
        &self.target
    }

    /// Takes a connection for one call; waits for one or opens one until the deadline.
    pub(super) fn take<'p>(
        self: &'p Arc<Self>,
        need: Need,
        deadline: Deadline,
        cancel: &'p Cancel,
    ) -> Result<Lease<'p>, PoolError> {
        let Taken {
            lane,
            mut connection,
            unused,
            losses,
        } = self.take_lane(need, deadline, cancel)?;
        // Without the lock.
        drop(unused);
        let mut lease = Lease {
            pool: self,
            cancel,
            lane,
            connection: None,
            holds_lane: true,
            keeps_pool: false,
            losses,
        };
        if self.options.reconnects
            && let Some(error) = connection.as_mut().and_then(Connection::broken)
        {
            // A call whose outcome would be unknown begins with a new one instead.
            self.lose(losses, lost(&error));
            connection = None;
        }
        let is_new = connection.is_none();
        let connection = match connection {
            Some(connection) => connection,
            None => self.connect(lane, deadline, cancel)?,
        };
        {
            let mut shared = self.lock();
            if let Some(ended) = &shared.ended {
                return Err(PoolError::Ended(ended.clone()));
            }
            if shared.server.is_none() {
                shared.ends = connection.ends().ok();
                let server = shared.ends.and_then(|ends| server_of(&ends));
                shared.server = server.or_else(|| Some(self.target.clone()));
            }
            shared.has_wait_change = connection.has(capability::WAIT_CHANGE);
            if is_new {
                lease.losses = shared.losses;
            }
        }
        lease.connection = Some(connection);
        lease.set_cancel(cancel.clone());
        if lease.exchange(|connection| connection.settle(deadline))? {
            return Ok(lease);
        }
        // The connection stays usable: a later call reads the reply.
        Err(PoolError::Failure(Failure::NoReply))
    }

    /// The ends of the first connection; `None` if the system did not report them, and in a forked child.
    pub(super) fn ends(&self) -> Option<ConnectionEnds> {
        self.process.check().ok()?;
        self.lock().ends
    }

    /// Whether the server has WAIT_CHANGE. False in a forked child.
    pub(super) fn has_wait_change(&self) -> bool {
        self.process.is_this() && self.lock().has_wait_change
    }

    /// Fails if the process has closed the store.
    pub(super) fn check_not_closed(&self) -> Result<(), PoolError> {
        self.process.check()?;
        match self.lock().ended {
            Some(Ended::Closed) => Err(PoolError::Ended(Ended::Closed)),
            Some(Ended::Lost { .. }) | None => Ok(()),
        }
    }

    /// Sleeps until the deadline. Fails early if the pool ends or the sleep is cancelled.
    pub(super) fn sleep_until(
        self: &Arc<Self>,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<(), PoolError> {
        self.process.check()?;
        let mut watch = cancel.watch();
        let mut shared = self.lock();
        loop {
            if let Some(ended) = &shared.ended {
                return Err(PoolError::Ended(ended.clone()));
            }
            let now = Instant::now();
            if deadline.has_passed(now) {
                return Ok(());
            }
            if watch.is_due() {
                let is_cancelled;
                (shared, is_cancelled) = self.ask(shared, &mut watch);
                if is_cancelled {
                    return Err(PoolError::Interrupted);
                }
                continue;
            }
            shared = wait_by(&self.has_ended, shared, deadline, now);
        }
    }

    /// Fails the calls in progress and all later calls.
    pub(super) fn close(&self) {
        self.end(Ended::Closed);
    }

    fn take_lane(
        self: &Arc<Self>,
        need: Need,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Taken, PoolError> {
        self.process.check()?;
        let this = thread::current().id();
        let mut watch = cancel.watch();
        let mut shared = self.lock();
        let mut asked = None;
        let result = loop {
            if let Some(ended) = &shared.ended {
                break Err(PoolError::Ended(ended.clone()));
            }
            let now = Instant::now();
            match shared.lanes.take(now, need, asked, this) {
                Take::Lane(lane) => {
                    if lane == shared.idle.len() {
                        shared.idle.push(None);
                        shared.closers.push(None);
                        shared.wakers.push(None);
                    }
                    let connection = shared.idle[lane].take();
                    break Ok(Taken {
                        lane,
                        connection,
                        unused: shared.take_unused(now),
                        losses: shared.losses,
                    });
                }
                _ if deadline.has_passed(now) => break Err(PoolError::TimedOut),
                _ if watch.is_due() => {
                    // Its check may use the store, and would wait for this call to use the requested lane.
                    if let Some(lane) = asked.take() {
                        shared.lanes.withdraw(lane);
                    }
                    let is_cancelled;
                    (shared, is_cancelled) = self.ask(shared, &mut watch);
                    if is_cancelled {
                        break Err(PoolError::Interrupted);
                    }
                }
                Take::GiveWay(lane) if asked != Some(lane) => {
                    if let Some(lane) = asked.replace(lane) {
                        shared.lanes.withdraw(lane);
                    }
                    shared.lanes.ask(lane);
                    let waker = shared.wakers[lane].clone();
                    // Also wakes the parked call of the lane asked before.
                    self.notify(shared);
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                    shared = self.lock();
                }
                Take::GiveWay(_) => {
                    shared = self.wait_for_lane(shared, deadline, now);
                }
                Take::WaitUntil(until) => {
                    let until = until.map_or(Deadline::NEVER, Deadline::at).min(deadline);
                    shared = self.wait_for_lane(shared, until, now);
                }
            }
        };
        if let Some(lane) = asked {
            shared.lanes.withdraw(lane);
            // If this was the last requesting call, the parked call may continue.
            self.notify(shared);
        }
        result
    }

    /// Whether the call of this thread is cancelled: asked without the lock.
    fn ask<'s>(
        self: &'s Arc<Self>,
        shared: MutexGuard<'s, Shared>,
        watch: &mut Watch<'_>,
    ) -> (MutexGuard<'s, Shared>, bool) {
        self.notify(shared);
        let is_cancelled = watch.ask(|| Arc::clone(self).into());
        (self.lock(), is_cancelled)
    }

    fn wait_for_lane<'s>(
        &self,
        mut shared: MutexGuard<'s, Shared>,
        deadline: Deadline,
        now: Instant,
    ) -> MutexGuard<'s, Shared> {
        shared.waiting_for_lane += 1;
        let mut shared = wait_by(&self.lane_changed, shared, deadline, now);
        shared.waiting_for_lane -= 1;
        shared
    }

    /// Wakes every thread that waits for a lane, after a change. All, because a thread that reaches its
    /// deadline at the same time would not use the lane.
    fn notify(&self, shared: MutexGuard<'_, Shared>) {
        let waiting = shared.waiting_for_lane;
        drop(shared);
        if waiting > 0 {
            self.lane_changed.notify_all();
        }
    }

    /// Connects. The first connection retries until the deadline, since the server may not have started yet. Later
    /// connections make one attempt: a server that refuses it has stopped, and a restarted server is a new, empty
    /// store.
    fn connect(
        &self,
        lane: usize,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Connection, PoolError> {
        let (server, losses) = {
            let shared = self.lock();
            (shared.server.clone(), shared.losses)
        };
        let Some(server) = server else {
            let options = &self.options.connect_options;
            return self.dial(lane, &self.target, options, deadline, cancel);
        };
        let once = self.options.connect_options.clone().with_rounds_max(1);
        let result = self.dial(lane, &server, &once, deadline, cancel);
        if let Err(PoolError::Connect(error)) = &result
            && error.is_refused()
            && !error.is_cancelled()
        {
            let lost = Ended::Lost {
                kind: io::ErrorKind::ConnectionRefused,
                text: error.to_string(),
            };
            self.lose(losses, lost);
        }
        result
    }

    fn dial(
        &self,
        lane: usize,
        target: &HostPort,
        options: &ConnectOptions,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Connection, PoolError> {
        #[cfg(feature = "extensions")]
        if let Some(connection) = self.dial_resumable(lane, target, deadline, cancel)? {
            return Ok(connection);
        }
        let mut dialer = Dialer::new(target, options, deadline).with_cancel(cancel.clone());
        let mut hello = if self.lock().wants_plain_hello {
            Hello::Plain
        } else {
            Hello::Ping
        };
        loop {
            let stream = dialer.connect().map_err(PoolError::Connect)?;
            let error = match self.shake_hands(lane, stream, hello, deadline, cancel) {
                Ok(connection) => {
                    self.lock().wants_plain_hello = hello == Hello::Plain;
                    return Ok(connection);
                }
                Err(PoolError::Failure(Failure::Lost(error) | Failure::NotSent(error))) => error,
                Err(PoolError::Failure(Failure::NoReply)) => io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the peer did not answer; it may not be a TCPStore server",
                ),
                Err(error) => return Err(error),
            };
            // A server that closes may be a version without PING, or not have started yet behind a
            // running proxy: alternate between both handshakes, the second one without a delay.
            match hello {
                Hello::Ping if error.kind() != io::ErrorKind::TimedOut => hello = Hello::Plain,
                _ => {
                    hello = Hello::Ping;
                    dialer.handshake_failed(error).map_err(PoolError::Connect)?;
                }
            }
        }
    }

    /// Makes a lane of a new connection.
    fn shake_hands(
        &self,
        lane: usize,
        stream: TcpStream,
        hello: Hello,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Connection, PoolError> {
        let tls = self.options.tls.as_ref();
        let tls = tls.map(TlsClient::start).transpose();
        let tls = tls.map_err(|error| Failure::Protocol(error.to_string()))?;
        let opened = match Stream::new(stream, tls) {
            Ok(mut stream) => {
                stream.set_cancel(cancel.clone());
                let closer = Closer::default();
                let _ = stream.register_with(&closer);
                self.make_closable(lane, closer)?;
                let reply_bytes_max = self.options.reply_bytes_max;
                Connection::open(Channel::from(stream), hello, reply_bytes_max, deadline)
            }
            Err(error) => Err(Failure::Lost(error)),
        };
        if opened.is_err() {
            self.lock().closers[lane] = None;
        }
        opened.map_err(|failure| match failure {
            Failure::Interrupted => PoolError::Interrupted,
            Failure::Lost(error) | Failure::NotSent(error) if is_closed_by_peer(&error) => {
                let hint = match self.options.tls {
                    Some(_) => "it may have no secret, or not be a TCPStore server",
                    None => "it may require a secret, or not be a TCPStore server",
                };
                let text = format!("the peer closed the connection; {hint}");
                Failure::Lost(io::Error::new(error.kind(), text)).into()
            }
            failure => failure.into(),
        })
    }

    /// Lets the end of the pool shut down this connection, even during its handshake.
    pub(super) fn make_closable(&self, lane: usize, closer: Closer) -> Result<(), PoolError> {
        let mut shared = self.lock();
        match &shared.ended {
            Some(ended) => Err(PoolError::Ended(ended.clone())),
            None => {
                shared.closers[lane] = Some(closer);
                Ok(())
            }
        }
    }

    /// Marks the pool as ended, once, and wakes every thread that uses it.
    fn end(&self, ended: Ended) {
        if !self.process.is_this() {
            return;
        }
        let mut shared = self.lock();
        if shared.ended.is_some() {
            return;
        }
        shared.ended = Some(ended);
        self.drop_connections(shared);
    }

    /// The connection to the server was lost, after as many others.
    fn lose(&self, losses: u64, lost: Ended) {
        if !self.options.reconnects {
            return self.end(lost);
        }
        if !self.process.is_this() {
            return;
        }
        let mut shared = self.lock();
        // Another call may have noticed it, and connected again.
        if shared.losses == losses && shared.ended.is_none() {
            shared.losses += 1;
            // It may return at another address.
            shared.server = None;
            self.drop_connections(shared);
        }
    }

    /// Whether a lost connection does not end the pool.
    pub(super) const fn reconnects(&self) -> bool {
        self.options.reconnects
    }

    /// Drops all connections, those in use too, and wakes each waiting thread.
    fn drop_connections(&self, mut shared: MutexGuard<'_, Shared>) {
        for idle in &mut shared.idle {
            *idle = None;
        }
        let closers: Vec<_> = shared.closers.iter_mut().map(Option::take).collect();
        self.notify(shared);
        self.has_ended.notify_all();
        for closer in closers.into_iter().flatten() {
            closer.close();
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        // No code panics while it holds the lock, and no invariant spans two acquisitions.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a notification, the deadline, or a spurious wakeup.
fn wait_by<'s>(
    condition: &Condvar,
    shared: MutexGuard<'s, Shared>,
    deadline: Deadline,
    now: Instant,
) -> MutexGuard<'s, Shared> {
    match deadline.remaining(now) {
        Some(left) => {
            let result = condition.wait_timeout(shared, left);
            result.unwrap_or_else(PoisonError::into_inner).0
        }
        None => {
            let result = condition.wait(shared);
            result.unwrap_or_else(PoisonError::into_inner)
        }
    }
}

/// The address of the server; `None` for a link-local address, since a `HostPort` has no interface.
fn server_of(ends: &ConnectionEnds) -> Option<HostPort> {
    match ends.remote {
        SocketAddr::V6(address) if address.scope_id() != 0 => None,
        address => Some(HostPort::new(address.ip().to_string(), address.port())),
    }
}

/// The use of one connection for one call.
#[derive(Debug)]
pub(super) struct Lease<'p> {
    pool: &'p Arc<Pool>,
    cancel: &'p Cancel,
    lane: usize,
    /// `None` once an exchange has failed.
    connection: Option<Connection>,
    /// False while the lane is left to other calls. During that time, there is no connection.
    holds_lane: bool,
    /// A failed exchange does not end the pool: the call finds out first why the server has closed the connection.
    keeps_pool: bool,
    /// [`Shared::losses`] of the connection.
    losses: u64,
}

/// A lane for a call.
struct Taken {
    lane: usize,
    /// The connection of the lane, if it has one.
    connection: Option<Connection>,
    /// Another connection that is no longer needed.
    unused: Option<Connection>,
    losses: u64,
}

fn lost(error: &io::Error) -> Ended {
    Ended::Lost {
        kind: error.kind(),
        text: error.to_string(),
    }
}

impl Lease<'_> {
    /// Whether writes without a reply may stay unacknowledged when the call returns.
    pub(super) const fn is_first_lane(&self) -> bool {
        self.lane == 0
    }

    /// Whether the server has this capability.
    pub(super) fn has(&self, capability: u32) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|it| it.has(capability))
    }

    /// Whether END_WAITS has ended the last wait. True once.
    pub(super) fn take_wait_ended(&mut self) -> bool {
        let connection = self.connection.as_mut();
        connection.is_some_and(Connection::take_wait_ended)
    }

    /// Whether the connection is ready for another exchange.
    pub(super) fn is_in_step(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_in_step)
    }

    /// Runs one exchange. A failure drops the connection, since replies may still be due. If the server has closed
    /// the connection, the whole pool fails, because a restarted server is a new, empty store.
    pub(super) fn exchange<T>(
        &mut self,
        exchange: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, PoolError> {
        let result = self.attempt(exchange);
        result.map_err(|failure| {
            if self.keeps_pool {
                PoolError::Failure(failure)
            } else {
                self.end_by(failure)
            }
        })
    }

    /// Runs what makes several exchanges. As with [`attempt`](Self::attempt), a failed one does not end the pool.
    pub(super) fn attempt_all<T>(&mut self, exchanges: impl FnOnce(&mut Self) -> T) -> T {
        self.keeps_pool = true;
        let result = exchanges(self);
        self.keeps_pool = false;
        result
    }

    /// Runs one exchange of a call that [waits](Self::start_waiting). Calls its second argument once
    /// everything sent before the wait has been acknowledged.
    pub(super) fn exchange_waiting<T>(
        &mut self,
        exchange: impl FnOnce(&mut Connection, &mut dyn FnMut()) -> Result<T, Failure>,
    ) -> Result<T, PoolError> {
        let (pool, lane) = (self.pool, self.lane);
        let mut acknowledged = || {
            let mut shared = pool.lock();
            shared.lanes.settled(lane);
            pool.notify(shared);
        };
        self.exchange(|connection| exchange(connection, &mut acknowledged))
    }

    /// Runs one exchange. A failure drops the connection but does not end the pool; the caller continues
    /// with [`reconnect`](Self::reconnect) or [`end_by`](Self::end_by).
    pub(super) fn attempt<T>(
        &mut self,
        exchange: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(connection) = &mut self.connection else {
            return Err(Failure::NotSent(io::ErrorKind::NotConnected.into()));
        };
        let result = exchange(connection);
        let is_acknowledged = connection.is_acknowledged();
        result.map_err(|failure| {
            if matches!(failure, Failure::Refused { .. }) {
                return failure;
            }
            self.connection = None;
            match is_acknowledged {
                true => failure,
                false => failure.with_reason(REFUSED_WRITE),
            }
        })
    }

    /// Opens a new connection for this lane, to the same server.
    pub(super) fn reconnect(&mut self, deadline: Deadline) -> Result<(), PoolError> {
        self.connection = None;
        self.connection = Some(self.pool.connect(self.lane, deadline, self.cancel)?);
        Ok(())
    }

    /// Ends the pool if the failure means that the connection to the server is lost.
    pub(super) fn end_by(&self, failure: Failure) -> PoolError {
        match &failure {
            Failure::Lost(error) | Failure::NotSent(error)
                if error.kind() != io::ErrorKind::TimedOut =>
            {
                let already_ended = self.pool.lock().ended.clone();
                if let Some(Ended::Closed) = already_ended {
                    return PoolError::Ended(Ended::Closed);
                }
                self.pool.lose(self.losses, lost(error));
            }
            Failure::Lost(_)
            | Failure::NotSent(_)
            | Failure::NoReply
            | Failure::Interrupted
            | Failure::Protocol(_)
            | Failure::Refused { .. } => {}
        }
        PoolError::Failure(failure)
    }

    /// Whether the call of a wait has left this lane for a moment. Another wait must not use the lane.
    pub(super) fn is_inside_a_wait(&self) -> bool {
        self.pool.lock().lanes.is_parked(self.lane)
    }

    /// Returns the present lane and acquires a lane for a wait. Everything that this thread has sent must have been
    /// acknowledged.
    pub(super) fn move_to_wait(&mut self, deadline: Deadline) -> Result<(), PoolError> {
        self.give_back();
        let keeps_pool = self.keeps_pool;
        *self = self.pool.take(Need::Wait, deadline, self.cancel)?;
        self.keeps_pool = keeps_pool;
        Ok(())
    }

    /// The call may wait long from now on. Returns whether it has to end the wait at once.
    pub(super) fn start_waiting(&self, since: Instant, gives_way: bool) -> Option<Called> {
        let connection = self.connection.as_ref();
        let wait = Wait {
            since,
            settled: connection.is_none_or(Connection::is_acknowledged),
            gives_way,
        };
        let mut shared = self.pool.lock();
        shared.lanes.start_waiting(self.lane, wait);
        let called = self.called_in(&mut shared);
        self.pool.notify(shared);
        called
    }

    /// Whether the call has to end its wait. Must be asked after a wake, and after the connection's waker
    /// has been created.
    pub(super) fn called(&self) -> Option<Called> {
        if self.cancel.is_cancelled() {
            return Some(Called::Cancelled);
        }
        self.called_in(&mut self.pool.lock())
    }

    fn called_in(&self, shared: &mut Shared) -> Option<Called> {
        // Published under the lock: a later call wakes it, and an earlier call is visible here.
        if shared.wakers[self.lane].is_none() {
            let connection = self.connection.as_ref();
            shared.wakers[self.lane] = connection.and_then(Connection::waker).cloned();
        }
        let must_give_way = shared.lanes.must_give_way(self.lane);
        must_give_way.then_some(Called::GiveWay)
    }

    /// The call no longer waits.
    pub(super) fn stop_waiting(&self) {
        let mut shared = self.pool.lock();
        shared.wakers[self.lane] = None;
        shared.lanes.stop_waiting(self.lane);
    }

    /// Leaves the lane to the requesting calls, and takes it back. Fails if the lane is not free by the deadline, or
    /// the wait is cancelled; after a failure the lease is unusable.
    pub(super) fn give_way(&mut self, deadline: Deadline) -> Result<(), PoolError> {
        let lane = self.lane;
        let connection = self.connection.take();
        self.holds_lane = false;
        let mut watch = self.cancel.watch();
        let mut shared = self.pool.lock();
        shared.put_back(lane, connection, self.losses);
        shared.lanes.park(lane);
        self.pool.notify(shared);
        let mut shared = self.pool.lock();
        let error = loop {
            if let Some(ended) = &shared.ended {
                break PoolError::Ended(ended.clone());
            }
            if shared.lanes.resume(lane) {
                self.holds_lane = true;
                self.connection = shared.idle[lane].take();
                if self.connection.is_some() {
                    self.losses = shared.losses;
                }
                drop(shared);
                self.set_cancel(self.cancel.clone());
                return Ok(());
            }
            let now = Instant::now();
            if deadline.has_passed(now) {
                break PoolError::TimedOut;
            }
            if watch.is_due() {
                let is_cancelled;
                (shared, is_cancelled) = self.pool.ask(shared, &mut watch);
                if is_cancelled {
                    break PoolError::Interrupted;
                }
                continue;
            }
            shared = self.pool.wait_for_lane(shared, deadline, now);
        };
        shared.lanes.abandon(lane);
        self.pool.notify(shared);
        Err(error)
    }

    /// Whether the lane has a connection: no exchange has failed.
    pub(super) const fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether another thread can wake this one out of a wait for a reply.
    pub(super) fn is_wakeable(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.waker().is_some())
    }

    /// Makes this thread [wakeable](Self::is_wakeable), if the process has a descriptor left.
    pub(super) fn make_wakeable(&mut self) {
        if let Some(connection) = &mut self.connection
            && let Err(error) = connection.make_waker()
        {
            log::debug!("{}: cannot create a waker: {error}", self.pool.target);
        }
    }

    /// Ends the call.
    pub(super) const fn cancel(&self) -> &Cancel {
        self.cancel
    }

    /// Ends the waits of the connection from now on.
    pub(super) fn set_cancel(&mut self, cancel: Cancel) {
        if let Some(connection) = &mut self.connection {
            connection.set_cancel(cancel);
        }
    }

    /// Drops the connection, whose replies can no longer be matched to requests.
    pub(super) fn fail(&mut self, failure: Failure) -> PoolError {
        self.connection = None;
        self.end_by(failure)
    }

    fn give_back(&mut self) {
        self.holds_lane = false;
        let connection = self.connection.take();
        let mut shared = self.pool.lock();
        shared.put_back(self.lane, connection, self.losses);
        shared.lanes.give_back(self.lane);
        self.pool.notify(shared);
    }
}

impl Shared {
    /// The connection of a lane that is no longer needed.
    fn take_unused(&mut self, now: Instant) -> Option<Connection> {
        let mut extra = 1..self.idle.len();
        let lane =
            extra.find(|&lane| self.idle[lane].is_some() && self.lanes.is_unused(lane, now))?;
        self.closers[lane] = None;
        self.idle[lane].take()
    }

    /// Keeps the connection of a lane for the next call.
    fn put_back(&mut self, lane: usize, connection: Option<Connection>, losses: u64) {
        if self.ended.is_none() && self.losses == losses {
            if connection.is_none() {
                self.closers[lane] = None;
            }
            self.idle[lane] = connection;
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if self.holds_lane {
            self.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use crate::server::{ServerOptions, TcpStoreServer};

    fn options() -> PoolOptions {
        PoolOptions {
            connect_options: ConnectOptions::default(),
            tls: None,
            credentials: None,
            reply_bytes_max: 1 << 20,
            resume: None,
            reconnects: false,
            lookup: None,
        }
    }

    fn open(server: &TcpStoreServer) -> Arc<Pool> {
        let target = HostPort::new("127.0.0.1", server.local_addr().port());
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
        Pool::open(target, options(), deadline, &Cancel::NEVER).expect("a server")
    }

    fn serve() -> TcpStoreServer {
        TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port")
    }

    #[test]
    fn closing_ends_a_sleep_without_a_deadline() {
        let server = serve();
        let pool = open(&server);
        thread::scope(|scope| {
            let sleeping = scope.spawn(|| pool.sleep_until(Deadline::NEVER, &Cancel::NEVER));
            pool.close();
            let slept = sleeping.join().expect("no panic");
            assert!(matches!(slept, Err(PoolError::Ended(Ended::Closed))));
        });
        let slept = pool.sleep_until(Deadline::at(Instant::now()), &Cancel::NEVER);
        assert!(matches!(slept, Err(PoolError::Ended(Ended::Closed))));
    }

    #[test]
    fn closing_ends_an_unanswered_handshake() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let opening = thread::spawn(move || {
            let target = HostPort::new("127.0.0.1", port);
            let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
            Pool::open(target, options(), deadline, &Cancel::NEVER)
        });
        let (mut first, _) = listener.accept().expect("the first lane");
        let mut hello = [0; 10];
        first.read_exact(&mut hello).expect("VALIDATE and PING");
        first.write_all(&hello[6..]).expect("the nonce");
        let pool = opening
            .join()
            .expect("no panic")
            .expect("the handshake succeeds");

        let taken = pool
            .take(Need::Answer, Deadline::NEVER, &Cancel::NEVER)
            .expect("the first lane");
        let long_ago = Instant::now() - Duration::from_secs(1);
        let wait = Wait {
            since: long_ago,
            settled: true,
            gives_way: false,
        };
        pool.lock().lanes.start_waiting(0, wait);
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
        thread::scope(|scope| {
            let second =
                scope.spawn(|| pool.take(Need::Answer, deadline, &Cancel::NEVER).map(drop));
            let (mut silent, _) = listener.accept().expect("the second lane");
            silent.read_exact(&mut hello).expect("VALIDATE and PING");
            pool.close();
            let error = second.join().expect("no panic").expect_err("closed");
            assert!(
                matches!(error, PoolError::Ended(Ended::Closed)),
                "{error:?}"
            );
        });
        drop(taken);
    }

    #[test]
    fn a_sleep_lasts_until_its_deadline_while_others_use_the_store() {
        let server = serve();
        let pool = open(&server);
        let deadline = Deadline::after(Instant::now(), Duration::from_millis(5));
        thread::scope(|scope| {
            let sleeping = scope.spawn(|| pool.sleep_until(deadline, &Cancel::NEVER));
            drop(
                pool.take(Need::Answer, Deadline::NEVER, &Cancel::NEVER)
                    .expect("an idle lane"),
            );
            let slept = sleeping.join().expect("no panic");
            assert!(slept.is_ok());
        });
        assert!(deadline.has_passed(Instant::now()));
    }
}
