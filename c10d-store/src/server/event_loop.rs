//! The server's only thread: moves bytes between sockets, parsers and the store.
//!
//! Makes no protocol decisions. One iteration: accept; for each readable socket, read, pass the
//! requests to the state, and send each connection its replies with one write; then the timers.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use c10d_socket::{
    RefusalLog, SocketOptions, Strangers, TlsServer, configure_accepted, is_tls, loopback_user,
    own_user, recv_into_spare, release_freed_memory,
};
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use super::connection::{Carrier, Connections, PAUSE_UNSENT_BYTES, Phase, conn_id_of, token_of};
use super::counts::Counts;
use super::http::{HttpConnection, InstalledHandler, is_http};
use super::observer::{Observed, StoreObserver};
use super::options::ServerOptions;
use super::sessions::Sessions;
use super::stall::{Stall, StallWatch, Workers};
use super::timers::Timers;
use super::turn::TurnClock;
use super::unproven::{Oldest, Stage, Unproven};
use crate::message::Request;
use crate::moment::Moment;
use crate::request_parser::{Flow, NextRead, ParseError, RequestParser};
use crate::session::{Hello, StoreId};
use crate::snapshot::{CloseReason, Counters};
use crate::state::{Refusal, SNAPSHOT_SLICE, StoreState};

mod clients;
#[cfg(test)]
mod tests;

const WAKER: Token = Token(usize::MAX);

/// Listener `i` has the token `LISTENER_LAST - i`.
const LISTENER_LAST: usize = usize::MAX - 1;

/// Events returned by one poll.
const EVENTS_PER_ITERATION: usize = 1024;

/// The size of the read buffer shared by all connections: large enough for many pipelined requests,
/// small enough to stay in the CPU cache.
const READ_BYTES: usize = 64 << 10;

/// The most bytes of one connection handled in one iteration, for fairness.
const BYTES_PER_ITERATION: usize = 1 << 20;

/// The most connections accepted in one iteration. As large as the usual backlog: a connect that finds
/// the backlog full is retried by its system only after a second.
const ACCEPTS_PER_ITERATION: usize = 4096;

/// How long a peer that has closed its sending side may take to read its remaining replies.
const FINISHING_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a refused peer may take to read its last replies and to close.
const REFUSING_TIMEOUT: Duration = Duration::from_secs(1);

/// The delay before accepting again after the system had no memory or descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How long a peer of a server with credentials may take to send its first byte. Clients send it when they are
/// connected, so only strangers need more, and each holds a descriptor.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most keys named in a report of long waits.
const KEYS_REPORTED_MAX: usize = 3;

const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

pub(super) struct EventLoop {
    poll: Poll,
    listeners: Vec<TcpListener>,
    connections: Connections,
    sessions: Sessions,
    state: StoreState,
    options: ServerOptions,
    /// With it, other connections are strangers.
    tls: Option<TlsServer>,
    strangers: Strangers,
    refusals: RefusalLog,
    unproven: Unproven,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    http_handler: InstalledHandler,
    observed: Observed,
    started: Instant,
    traffic: Traffic,
    stall: StallWatch,
    read_buffer: Box<[u8]>,
    /// What a TLS connection has received, opened.
    opened: Vec<u8>,
    /// Connections and sessions with work left from an earlier turn, for which no event will arrive.
    ready: VecDeque<Ready>,
    turn: TurnClock,
    /// Listeners that may have more connections to accept, for which no event will arrive.
    accept_more: Vec<usize>,
    accept_retry_at: Option<Instant>,
    timers: Timers,
    /// A spare descriptor, closed for a moment when the process has none left, so that queued peers can
    /// be accepted and refused instead of hanging.
    spare_file: Option<File>,
}

impl EventLoop {
    pub(super) fn new(
        listeners: Vec<std::net::TcpListener>,
        options: ServerOptions,
        tls: Option<TlsServer>,
        stop: Arc<AtomicBool>,
        counts: Arc<Counts>,
        http_handler: InstalledHandler,
    ) -> io::Result<(Self, StoreObserver, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (observer, observed) = Observed::new(Arc::clone(&waker));
        let mut registered = Vec::with_capacity(listeners.len());
        for (index, listener) in listeners.into_iter().enumerate() {
            listener.set_nonblocking(true)?;
            let mut listener = TcpListener::from_std(listener);
            let token = Token(LISTENER_LAST - index);
            poll.registry()
                .register(&mut listener, token, Interest::READABLE)?;
            registered.push(listener);
        }
        let event_loop = Self {
            poll,
            listeners: registered,
            connections: Connections::new(options.unsent_bytes_max()),
            sessions: Sessions::new(StoreId::random(), options.session_timeout()),
            state: StoreState::new(),
            stall: StallWatch::new(options.stall_report_after()),
            options,
            tls,
            strangers: Strangers::default(),
            refusals: RefusalLog::new(Instant::now()),
            unproven: Unproven::default(),
            stop,
            counts,
            http_handler,
            observed,
            started: Instant::now(),
            traffic: Traffic::default(),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            opened: Vec::new(),
            ready: VecDeque::new(),
            turn: TurnClock::new(Instant::now()),
            accept_more: Vec::new(),
            accept_retry_at: None,
            timers: Timers::default(),
            spare_file: open_spare_file(),
        };
        Ok((event_loop, observer, waker))
    }

    /// Runs until the stop flag is set and the waker is called. All connections close on return.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_PER_ITERATION);
        while !self.is_stopping() {
            let timeout = self.time_to_sleep();
            if let Err(error) = self.poll.poll(&mut events, timeout) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                log::error!("the store server stops, as it cannot poll its sockets: {error}");
                return;
            }
            self.handle_events(&events);
        }
        log::debug!(
            "the store server stops with {} connections",
            self.connections.len()
        );
    }

    fn time_to_sleep(&mut self) -> Option<Duration> {
        let is_observed = self.state.is_in_snapshot() || self.observed.is_snapshot_wanted();
        let has_work = !self.ready.is_empty() || self.connections.has_touched_clients();
        if has_work || !self.accept_more.is_empty() || is_observed {
            return Some(Duration::ZERO);
        }
        let connections = &self.connections;
        let timer = self.timers.time_left(Instant::now, |at, token| {
            connections
                .get(token)
                .is_some_and(|connection| connection.deadline == Some(at))
        });
        let retry = self
            .accept_retry_at
            .map(|at| at.saturating_duration_since(Instant::now()));
        let report = self
            .stall
            .due()
            .map(|at| at.saturating_duration_since(Instant::now()));
        let refusals = self
            .refusals
            .due()
            .map(|at| at.saturating_duration_since(Instant::now()));
        let session = self.sessions.time_left(Instant::now);
        [timer, retry, report, refusals, session]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle_events(&mut self, events: &Events) {
        let now = Instant::now();
        self.state
            .set_now(Moment::from(now.saturating_duration_since(self.started)));
        let memory_max = self.counts.memory_max.load(Ordering::Acquire);
        self.state
            .set_memory_max((memory_max > 0).then_some(memory_max));
        self.unproven.next_turn();
        self.turn.start_iteration(now);
        self.accept_where_possible(events);
        let left_over = self.ready.len();
        for event in events {
            if self.is_stopping() {
                return;
            }
            if self.connections.get(event.token()).is_some() {
                self.on_event(event);
            }
        }
        self.serve_ready(left_over);
        self.expire();
        self.expire_sessions(now);
        self.turn.start_turn();
        self.flush_touched();
        self.watch_waits(now);
        self.watch_announcements();
        if let Some(line) = self.refusals.report(now) {
            log::warn!("{line}");
        }
        self.answer_observers();
        self.observed.turn_done();
        if self.state.take_released() {
            release_freed_memory();
        }
    }

    /// Serves those that had work left, at most this many, as long as the iteration has time, but at least one.
    fn serve_ready(&mut self, most: usize) {
        for _ in 0..most {
            if self.is_stopping() {
                return;
            }
            match self.ready.pop_front() {
                None => return,
                Some(Ready::Connection(token)) => {
                    if let Some(connection) = self.connections.get_mut(token) {
                        connection.is_ready = false;
                        self.read(token, true);
                    }
                }
                Some(Ready::Session(slot)) => self.continue_session(slot),
            }
            if self.turn.is_iteration_over() {
                return;
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Has a connection read again after the others.
    fn serve_later(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push_back(Ready::Connection(token));
        }
    }

    /// Goes on with the requests of a connection that has read enough of its replies.
    fn resume_if_read(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(token)
            && connection.paused
            && connection.out.unsent_bytes() < PAUSE_UNSENT_BYTES
        {
            connection.paused = false;
            connection.resume = true;
            self.serve_later(token);
        }
    }

    /// Copies a slice of a snapshot. What happens between two slices does not change it.
    fn answer_observers(&mut self) {
        let (state, traffic) = (&self.state, &self.traffic);
        self.observed.receive(|| traffic.added_to(state.counters()));
        if !state.is_in_snapshot() && self.observed.is_snapshot_wanted() {
            let counters = traffic.added_to(state.counters());
            self.state.start_snapshot(counters);
            self.observed.snapshot_started();
        }
        if let Some(image) = self.state.continue_snapshot(SNAPSHOT_SLICE) {
            self.observed.snapshot_done(image);
        }
    }

    /// Logs once that announcements are ignored.
    fn watch_announcements(&mut self) {
        if self.state.announcements_ignored() > 0 && !self.traffic.announcements_warned {
            self.traffic.announcements_warned = true;
            log::warn!(
                "announcements are ignored from now on: the open connections' fill the limit of 64 MiB"
            );
        }
    }

    /// Publishes the number of waits, and logs a report of long ones.
    fn watch_waits(&mut self, now: Instant) {
        let waiting = self.state.waiting();
        self.counts.waiting.store(waiting, Ordering::Release);
        self.stall.observe(waiting > 0, || now);
        if self.stall.due().is_none_or(|due| due > now) {
            return;
        }
        let summary = self.state.summary_of_waits(KEYS_REPORTED_MAX);
        let oldest = summary.oldest.and_then(|(conn, since)| {
            let connection = self.connections.get(token_of(conn))?;
            Some((connection.peer, self.started + since.since_start()))
        });
        let Some((oldest_peer, since)) = oldest else {
            // Every wait has a start and a connection. If not, log nothing rather than spin.
            return self.stall.observe(false, || now);
        };
        if !self.stall.is_report_due(since, now) {
            return;
        }
        let stall = Stall {
            waiting: summary.waiting,
            oldest_since: since,
            oldest_peer,
            keys: summary.keys,
            more_keys: summary.more_keys,
            workers: Workers {
                world_size: self.options.world_size(),
                joined: self.state.joined_workers(),
                connections: self.connections.len(),
            },
        };
        let (level, line) = stall.line(now);
        log::log!(level, "{line}");
    }

    fn on_event(&mut self, event: &Event) {
        let token = event.token();
        if event.is_writable() {
            self.flush(token);
        }
        if !(event.is_readable() || event.is_read_closed() || event.is_error()) {
            return;
        }
        // It has had its turn, or its turn comes in the next iteration.
        let connection = self.connections.get(token);
        if self.turn.is_iteration_over() || connection.is_some_and(|it| it.is_ready) {
            return self.serve_later(token);
        }
        self.read(token, event.is_read_closed() || event.is_error());
    }

    fn accept_where_possible(&mut self, events: &Events) {
        let first = Token(LISTENER_LAST + 1 - self.listeners.len());
        for event in events {
            if event.token() >= first && event.token() != WAKER {
                self.accept_more.push(LISTENER_LAST - event.token().0);
            }
        }
        if self.accept_more.is_empty() && self.accept_retry_at.is_none() {
            return;
        }
        let now = Instant::now();
        if self.accept_retry_at.is_some_and(|at| at <= now) {
            self.accept_retry_at = None;
            self.accept_more.extend(0..self.listeners.len());
        }
        self.accept_more.sort_unstable();
        self.accept_more.dedup();
        for listener in std::mem::take(&mut self.accept_more) {
            self.accept(listener, now);
        }
    }

    fn accept(&mut self, listener: usize, now: Instant) {
        for _ in 0..ACCEPTS_PER_ITERATION {
            match self.listeners[listener].accept() {
                Ok((stream, peer)) => self.admit(stream, peer, now),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    // The peer disconnected, or a signal arrived: the listener is fine.
                    io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::Interrupted => {}
                    _ => match self.accept_with_spare(listener, &error, now) {
                        Refused::One => {}
                        Refused::OneOfMany => break,
                        // The system allocates a descriptor before it checks the queue, so the error
                        // does not mean that a connection is queued.
                        Refused::NoneQueued => return,
                        Refused::Impossible => {
                            let text =
                                format_args!("cannot accept connections, retrying soon: {error}");
                            self.log_about(None, &text);
                            self.accept_retry_at = Some(now + ACCEPT_RETRY);
                            return;
                        }
                    },
                },
            }
        }
        self.accept_more.push(listener);
    }

    /// Out of descriptors: closes the spare one to accept a connection, which takes the place of one that has not
    /// proved itself, or is closed, which the peer notices at once.
    fn accept_with_spare(&mut self, listener: usize, error: &io::Error, now: Instant) -> Refused {
        if !matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
            return Refused::Impossible;
        }
        let Some(spare_file) = self.spare_file.take() else {
            let room = self.make_room();
            self.spare_file = open_spare_file();
            return match room {
                Room::Made => Refused::One,
                Room::Soon | Room::None => Refused::Impossible,
            };
        };
        drop(spare_file);
        let accepted = self.listeners[listener].accept();
        let room = match accepted {
            Ok(_) => self.make_room(),
            Err(_) => Room::None,
        };
        let accepted = accepted.map(|(stream, peer)| {
            if room == Room::Made {
                self.admit(stream, peer, now);
            } else {
                drop(stream);
                self.traffic.rejected += 1;
                let reason = format_args!("this process has no file descriptor left: {error}");
                self.log_refusal(peer, &reason);
            }
        });
        self.spare_file = open_spare_file();
        match accepted {
            Ok(()) if room == Room::Soon => Refused::OneOfMany,
            Ok(()) => Refused::One,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Refused::NoneQueued,
            Err(_) => Refused::Impossible,
        }
    }

    fn admit(&mut self, stream: mio::net::TcpStream, peer: SocketAddr, now: Instant) {
        if self.connections.len() >= self.options.connections_max()
            && self.make_room() != Room::Made
        {
            self.traffic.rejected += 1;
            let limit = self.options.connections_max();
            self.log_refusal(
                peer,
                &format_args!("the limit of {limit} connections is reached"),
            );
            return;
        }
        if let Err(error) = configure_accepted(&stream, &SocketOptions::default()) {
            log::debug!("{peer}: cannot set socket options: {error}");
        }
        let deadline = now.checked_add(self.first_byte_timeout());
        let token = self
            .connections
            .insert(Carrier::Socket(stream), peer, deadline);
        let connections = &self.connections;
        self.unproven
            .accepted(token, |token| stage_of(connections, token));
        self.state.connect(conn_id_of(token), peer);
        self.publish_count();
        if let Some(deadline) = deadline {
            self.timers.add(deadline, token);
        }
        self.update_interest(token);
        log::debug!("accepted {peer} as {:?}", conn_id_of(token));
    }

    /// Reads from a connection and handles the requests. With `to_the_end` a short read is not the last
    /// one, since the end of the stream may follow.
    fn read(&mut self, token: Token, to_the_end: bool) {
        let mut budget = BYTES_PER_ITERATION;
        self.turn.start_turn();
        while let Some(connection) = self.connections.get_mut(token) {
            match connection.phase {
                Phase::Open if connection.paused => return,
                Phase::Open => {}
                Phase::Finishing => return,
                Phase::Refusing => return self.discard(token),
            }
            if connection.client().is_some() {
                return self.resume_client(token);
            }
            if std::mem::take(&mut connection.resume) {
                self.process(token, Input::InParser);
                budget = budget.saturating_sub(PAUSE_UNSENT_BYTES);
                if budget == 0 || self.turn.is_turn_over() {
                    return self.serve_later(token);
                }
                continue;
            }
            let next_read = match connection.tls {
                None => connection.parser.next_read(),
                Some(_) => NextRead::Anywhere,
            };
            let link = connection.link;
            if link.is_some_and(|slot| self.sessions.has_backlog(slot)) {
                // The session reads on once it has carried out what has arrived.
                return;
            }
            let Carrier::Socket(stream) = &mut connection.carrier else {
                return;
            };
            let (asked, result) = match next_read {
                NextRead::Anywhere => {
                    let result = stream.read(&mut self.read_buffer);
                    (self.read_buffer.len(), result)
                }
                NextRead::Direct { bytes_max } => {
                    let asked = bytes_max.min(budget);
                    let buffer = connection.parser.direct_buffer();
                    (asked, recv_into_spare(stream, buffer, asked))
                }
            };
            let count = match result {
                Ok(0) => return self.on_end_of_stream(token),
                Ok(count) => count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => continue,
                    _ => return self.close(token, CloseReason::Failed, &error),
                },
            };
            self.traffic.received_bytes += count as u64;
            self.turn.received(count, Instant::now);
            let input = match next_read {
                NextRead::Anywhere if connection.tls.is_some() => self.open(token, count),
                NextRead::Anywhere if connection.parser.is_new() => self.classify(token, count),
                NextRead::Anywhere => Some(Input::Shared(count)),
                NextRead::Direct { .. } => Some(Input::InParser),
            };
            let Some(input) = input else { return };
            match link {
                Some(session) => self.receive_link(token, session, input),
                None => self.process(token, input),
            }
            budget = budget.saturating_sub(count);
            if count < asked && !to_the_end {
                return;
            }
            if budget == 0 || self.turn.is_turn_over() {
                return self.serve_later(token);
            }
        }
    }

    /// Tells by the first bytes what a new connection speaks. `None` if it is closed or handed over.
    fn classify(&mut self, token: Token, count: usize) -> Option<Input> {
        let first = self.read_buffer[0];
        if is_http(first)
            && let Some(handler) = self.http_handler.get()
        {
            if let Some(connection) = self.hand_over(token, count) {
                handler.serve(connection);
            }
            return None;
        }
        let Some(tls) = &self.tls else {
            return Some(Input::Shared(count));
        };
        if !is_tls(first) {
            if self.options.plain_from_same_user && self.is_of_same_user(token) {
                self.set_deadline(token, self.options.handshake_timeout());
                return Some(Input::Shared(count));
            }
            let reason =
                "it does not use the secret of this server; unmodified PyTorch clients cannot";
            self.refuse_stranger(token, &reason);
            return None;
        }
        let connection = self.connections.get_mut(token)?;
        if !self.strangers.may_try(connection.peer.ip(), Instant::now()) {
            self.refuse_stranger(token, &"too many failed handshakes of its address");
            return None;
        }
        match tls.start() {
            Ok(layer) => connection.tls = Some(layer),
            Err(error) => {
                self.refuse_stranger(token, &error);
                return None;
            }
        }
        self.set_deadline(token, self.options.handshake_timeout());
        let connections = &self.connections;
        let excess = self
            .unproven
            .handshake_begun(token, |token| stage_of(connections, token));
        for oldest in excess {
            self.refuse_stranger(oldest, &"handshake limit reached, and it is the oldest");
        }
        self.open(token, count)
    }

    /// Opens what a TLS connection has received. `None` if it is closed.
    fn open(&mut self, token: Token, count: usize) -> Option<Input> {
        let connection = self.connections.get_mut(token)?;
        let layer = connection.tls.as_mut()?;
        self.opened.clear();
        let result = layer.receive(&self.read_buffer[..count], &mut self.opened);
        if layer.has_unsent() {
            self.flush(token);
        }
        let Err(error) = result else {
            return self.connections.get(token).map(|_| Input::Opened);
        };
        self.refuse_stranger(token, &error);
        None
    }

    /// Closes the oldest connection that has not proved itself.
    fn make_room(&mut self) -> Room {
        loop {
            let connections = &self.connections;
            let oldest = self
                .unproven
                .take_oldest(|token| stage_of(connections, token));
            let (token, stage) = match oldest {
                Oldest::Found(token, stage) => (token, stage),
                Oldest::TooNew => return Room::Soon,
                Oldest::None => return Room::None,
            };
            // What proves it may have arrived.
            self.read(token, true);
            if self.connections.get(token).is_none() {
                return Room::Made;
            }
            if stage_of(&self.connections, token) == stage {
                let reason = "its place is needed, and it is the oldest that has not completed the handshake";
                self.refuse_stranger(token, &reason);
                return Room::Made;
            }
        }
    }

    /// Whether a process of the user that runs the server is at the other end, on this machine.
    fn is_of_same_user(&mut self, token: Token) -> bool {
        let Some(connection) = self.connections.get(token) else {
            return false;
        };
        let (Carrier::Socket(stream), peer) = (&connection.carrier, connection.peer) else {
            return false;
        };
        // To ask takes a descriptor.
        self.spare_file = None;
        let user = stream
            .local_addr()
            .and_then(|local| loopback_user(local, peer));
        self.spare_file = open_spare_file();
        match user {
            Ok(user) => user == Some(own_user()),
            Err(error) => {
                let text = format_args!("{peer}: cannot find out its user: {error}");
                self.log_about(peer.ip(), &text);
                false
            }
        }
    }

    /// How long a new connection may be silent.
    fn first_byte_timeout(&self) -> Duration {
        let handshake_timeout = self.options.handshake_timeout();
        match self.tls {
            None => handshake_timeout,
            Some(_) => handshake_timeout.min(FIRST_BYTE_TIMEOUT),
        }
    }

    /// Closes a connection that may not be served. What it was sent before goes out first, as far as possible.
    fn refuse_stranger(&mut self, token: Token, reason: &dyn fmt::Display) {
        let Some(connection) = self.connections.get(token) else {
            return;
        };
        self.traffic.rejected += 1;
        self.log_refusal(connection.peer, reason);
        self.close_quietly(token, CloseReason::Refused);
    }

    /// Logs why a peer is refused, unless there are too many such lines.
    fn log_refusal(&mut self, peer: SocketAddr, reason: &dyn fmt::Display) {
        self.log_about(peer.ip(), &format_args!("refused {peer}: {reason}"));
    }

    /// Logs what a peer has caused, unless there are too many such lines.
    fn log_about(&mut self, address: impl Into<Option<IpAddr>>, text: &dyn fmt::Display) {
        if let Some(line) = self.refusals.line(address, text, Instant::now()) {
            log::warn!("{line}");
        }
    }

    /// Removes a connection that speaks HTTP. Its first bytes are in the shared read buffer.
    fn hand_over(&mut self, token: Token, received: usize) -> Option<HttpConnection> {
        let connection = self.connections.remove(token)?;
        self.publish_count();
        self.state.hand_over(conn_id_of(token));
        let Carrier::Socket(mut stream) = connection.carrier else {
            return None;
        };
        let registry = self.poll.registry();
        if let Err(error) = registry.deregister(&mut stream) {
            log::warn!(
                "{}: cannot hand over the connection: {error}",
                connection.peer
            );
            return None;
        }
        log::debug!("{} speaks HTTP ({:?})", connection.peer, conn_id_of(token));
        Some(HttpConnection {
            stream: stream.into(),
            peer: connection.peer,
            received: self.read_buffer[..received].to_vec(),
        })
    }

    /// Handles the requests in the input, then sends all new replies.
    fn process(&mut self, token: Token, input: Input) {
        match self.with_input(input, |this, bytes| this.feed(token, bytes)) {
            Ok(None) => {}
            Ok(Some(hello)) => self.attach(token, &hello),
            Err(error) => self.refuse(token, &error),
        }
        self.flush_touched();
    }

    /// Calls `handle` with the bytes of the input, `None` if they are in the parser.
    fn with_input<T>(
        &mut self,
        input: Input,
        handle: impl FnOnce(&mut Self, Option<&[u8]>) -> T,
    ) -> T {
        match input {
            Input::Shared(count) => {
                let buffer = std::mem::take(&mut self.read_buffer);
                let result = handle(self, Some(&buffer[..count]));
                self.read_buffer = buffer;
                result
            }
            Input::Opened => {
                let opened = std::mem::take(&mut self.opened);
                let result = handle(self, Some(&opened));
                self.opened = opened;
                result
            }
            Input::InParser => handle(self, None),
        }
    }

    /// Handles the requests in the bytes, or those that the parser has kept. Returns the argument of SESSION, if
    /// the last request was that.
    fn feed(
        &mut self,
        token: Token,
        bytes: Option<&[u8]>,
    ) -> Result<Option<Hello>, ParseError<Refusal>> {
        let Some(connection) = self.connections.get_mut(token) else {
            return Ok(None);
        };
        let mut parser = std::mem::take(&mut connection.parser);
        let mut hello = None;
        let conn = conn_id_of(token);
        let limits = self.options.limits();
        let (state, connections) = (&mut self.state, &mut self.connections);
        let turn = &mut self.turn;
        let mut must_wait = false;
        let handle = |request: Request<'_>| {
            if let Request::Session(begun) = &request {
                hello = Some(*begun);
            }
            let before = state.work();
            let result = state.handle(conn, request, connections);
            turn.spend(state.work().wrapping_sub(before), Instant::now);
            result?;
            must_wait = hello.is_some() || !connections.may_continue(token);
            Ok::<_, Refusal>(if must_wait || turn.is_turn_over() {
                Flow::Pause
            } else {
                Flow::Continue
            })
        };
        let outcome = match bytes {
            Some(bytes) => parser.receive(bytes, limits, handle),
            None => parser.resume(limits, handle),
        };
        if let Some(connection) = self.connections.get_mut(token) {
            if parser.is_handshake_done() {
                connection.deadline = None;
            }
            connection.parser = parser;
            let has_stopped = outcome == Ok(Flow::Pause);
            connection.paused = has_stopped && must_wait;
            if has_stopped && !must_wait {
                connection.resume = true;
                self.serve_later(token);
            }
        }
        outcome.map(|_| hello)
    }

    /// Sends new replies, including those caused by connections that fail while sending. Those of sessions' clients only
    /// until the turn is over, and the rest in the next iteration: one short frame has replies made for a thousand.
    fn flush_touched(&mut self) {
        loop {
            while !self.turn.is_turn_over()
                && let Some(client) = self.connections.next_touched_client()
            {
                self.flush_client(client);
            }
            if !self.connections.has_touched() {
                return;
            }
            let touched = self.connections.take_touched();
            for token in &touched {
                self.flush(*token);
            }
            self.connections.reuse_touched(touched);
        }
    }

    fn flush(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if connection.client().is_some() {
            return self.flush_client(token);
        }
        if connection.link.is_some() {
            return self.flush_link(token);
        }
        self.flush_socket(token);
    }

    fn flush_socket(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if connection.overflowed {
            let error = io::Error::other(format!(
                "unread replies exceed the limit of {} bytes",
                self.options.unsent_bytes_max()
            ));
            let peer = connection.peer;
            self.log_refusal(peer, &error);
            return self.close(token, CloseReason::Refused, &error);
        }
        let unsent_bytes = connection.out.unsent_bytes();
        let drained = match connection.flush() {
            Ok(drained) => drained,
            Err(error) => return self.close(token, CloseReason::Failed, &error),
        };
        self.traffic.sent_bytes += (unsent_bytes - connection.out.unsent_bytes()) as u64;
        self.resume_if_read(token);
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if drained {
            match connection.phase {
                Phase::Open => {}
                Phase::Finishing => return self.close_quietly(token, CloseReason::Peer),
                Phase::Refusing => {
                    let shut = connection
                        .socket()
                        .map_or(Ok(()), |it| it.shutdown(Shutdown::Write));
                    if let Err(error) = shut {
                        return self.close(token, CloseReason::Refused, &error);
                    }
                }
            }
        }
        self.update_interest(token);
    }

    fn update_interest(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let wanted = connection.interest();
        if wanted == connection.registered {
            return;
        }
        let registry = self.poll.registry();
        let registered = connection.registered;
        let Some(stream) = connection.socket() else {
            return;
        };
        let result = match (registered, wanted) {
            (None, Some(wanted)) => registry.register(stream, token, wanted),
            (Some(_), Some(wanted)) => registry.reregister(stream, token, wanted),
            (_, None) => registry.deregister(stream),
        };
        connection.registered = wanted;
        if let Err(error) = result {
            let peer = connection.peer;
            let text = format_args!("{peer}: cannot register the connection: {error}");
            self.log_about(peer.ip(), &text);
            self.close(token, CloseReason::Failed, &error);
        }
    }

    /// The peer has closed its sending side. A client does that only when it stops, so its pending wait
    /// is removed; earlier replies are still sent.
    fn on_end_of_stream(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        // What a session has to send goes over its next link.
        if !connection.has_unsent() || connection.link.is_some() {
            return self.close_quietly(token, CloseReason::Peer);
        }
        connection.phase = Phase::Finishing;
        self.set_deadline(token, FINISHING_TIMEOUT);
        self.forget(token, CloseReason::Peer);
        self.update_interest(token);
    }

    fn refuse(&mut self, token: Token, error: &ParseError<Refusal>) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        connection.phase = Phase::Refusing;
        connection.parser = RequestParser::default();
        let peer = connection.peer;
        match error {
            ParseError::Wire(error) => self.log_refusal(peer, error),
            ParseError::Refused(error) => self.log_refusal(peer, error),
        }
        self.set_deadline(token, REFUSING_TIMEOUT);
        self.forget(token, CloseReason::Refused);
        self.flush(token);
        // Unread input would turn the close into a reset.
        self.discard(token);
    }

    /// Discards the input of a refused peer until it closes.
    fn discard(&mut self, token: Token) {
        let mut budget = BYTES_PER_ITERATION;
        while let Some(connection) = self.connections.get_mut(token) {
            let has_unsent = connection.has_unsent();
            let Some(stream) = connection.socket() else {
                return;
            };
            match stream.read(&mut self.read_buffer) {
                Ok(0) if !has_unsent => {
                    return self.close_quietly(token, CloseReason::Refused);
                }
                Ok(0) => return,
                Ok(count) => budget = budget.saturating_sub(count),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    _ => return self.close_quietly(token, CloseReason::Refused),
                },
            }
            if budget == 0 {
                return self.serve_later(token);
            }
        }
    }

    fn set_deadline(&mut self, token: Token, timeout: Duration) {
        let deadline = Instant::now().checked_add(timeout);
        if let Some(connection) = self.connections.get_mut(token) {
            connection.deadline = deadline;
            if let Some(deadline) = deadline {
                self.timers.add(deadline, token);
            }
        }
    }

    fn expire(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((at, token)) = self.timers.pop_due(now) {
            let Some(connection) = self.connections.get(token) else {
                continue;
            };
            if connection.deadline != Some(at) {
                continue;
            }
            let peer = connection.peer;
            match connection.phase {
                Phase::Open => {
                    let limit = match stage_of(&self.connections, token) {
                        Stage::Silent => self.first_byte_timeout(),
                        Stage::Handshaking | Stage::Done => self.options.handshake_timeout(),
                    };
                    self.log_refusal(peer, &format_args!("no handshake within {limit:?}"));
                }
                Phase::Finishing => {
                    let unread = connection.out.unsent_bytes();
                    let text = format_args!(
                        "closing {peer}: {unread} bytes of replies unread for {FINISHING_TIMEOUT:?}"
                    );
                    self.log_about(peer.ip(), &text);
                }
                Phase::Refusing => {}
            }
            self.close_quietly(token, CloseReason::Refused);
        }
    }

    fn close(&mut self, token: Token, reason: CloseReason, error: &io::Error) {
        if let Some(connection) = self.connections.get(token) {
            log::debug!("{}: {error}", connection.peer);
        }
        self.close_quietly(token, reason);
    }

    /// Closes a connection. `reason` counts unless the store has been told another one before.
    fn close_quietly(&mut self, token: Token, reason: CloseReason) {
        if let Some(connection) = self.connections.remove(token) {
            log::debug!("closed {} ({:?})", connection.peer, conn_id_of(token));
            if let Some(tls) = &connection.tls
                && tls.is_handshaking()
                && tls.has_computed()
            {
                // Refused, or ended by the peer, which may have replayed the hello of another.
                let address = connection.peer.ip();
                self.strangers.on_failure(address, Instant::now());
            }
            if let Some(session) = connection.link
                && self.sessions.link_closed(session, token, Instant::now())
            {
                self.set_away(session, true);
            }
            // Close the socket before its end wakes other connections.
            drop(connection);
            self.publish_count();
            self.forget(token, reason);
        }
    }

    fn publish_count(&self) {
        self.counts
            .connections
            .store(self.connections.len(), Ordering::Release);
    }

    /// Removes a connection from the store: its wait, and a wakeup that another connection can use. The
    /// next [`flush_touched`](Self::flush_touched) sends to that connection; sending from here would
    /// recurse once for each of thousands of dead peers that wait for one queue.
    fn forget(&mut self, token: Token, reason: CloseReason) {
        self.state
            .disconnect(conn_id_of(token), reason, &mut self.connections);
    }
}

/// Totals that only the event loop knows.
#[derive(Debug, Default)]
struct Traffic {
    received_bytes: u64,
    sent_bytes: u64,
    /// Connections turned away.
    rejected: u64,
    announcements_warned: bool,
}

impl Traffic {
    const fn added_to(&self, mut counters: Counters) -> Counters {
        counters.received_bytes = self.received_bytes;
        counters.sent_bytes = self.sent_bytes;
        counters.rejected = self.rejected;
        counters
    }
}

/// What is served again without an event.
#[derive(Debug, Clone, Copy)]
enum Ready {
    Connection(Token),
    /// The session in this slot, which has a backlog.
    Session(usize),
}

/// The result of [`EventLoop::make_room`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// A connection was closed.
    Made,
    /// Some have not proved themselves, but had no time to.
    Soon,
    None,
}

/// The result of [`EventLoop::accept_with_spare`].
#[derive(Debug, Clone, Copy)]
enum Refused {
    /// One connection was accepted, or refused.
    One,
    /// The same, and the next ones are better accepted in the next turn.
    OneOfMany,
    NoneQueued,
    Impossible,
}

/// Where the input is.
#[derive(Debug, Clone, Copy)]
enum Input {
    /// This number of bytes in the shared read buffer.
    Shared(usize),
    /// What TLS has opened, perhaps nothing.
    Opened,
    /// In the parser: read directly into it, or kept there by a pause.
    InParser,
}

/// How far a connection is on its way to be served.
fn stage_of(connections: &Connections, token: Token) -> Stage {
    let Some(connection) = connections.get(token) else {
        return Stage::Done;
    };
    match (&connection.carrier, &connection.tls) {
        (Carrier::Session(_), _) => Stage::Done,
        (Carrier::Socket(_), Some(tls)) if tls.is_handshaking() => Stage::Handshaking,
        (Carrier::Socket(_), None)
            if connection.parser.is_new() && connection.phase == Phase::Open =>
        {
            Stage::Silent
        }
        (Carrier::Socket(_), _) => Stage::Done,
    }
}

fn open_spare_file() -> Option<File> {
    File::open("/dev/null").ok()
}
