//! The server's only thread: moves bytes between sockets, sessions and the store.
//!
//! Decides nothing about the protocol. One turn: accept; for each socket that can be read, read
//! some, hand the requests to the state, send each connection what it has got with one write; then
//! the timers.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use c10d_socket::{SocketOptions, configure_accepted, recv_into_spare};
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use super::connection::{Connections, PAUSE_UNSENT_BYTES, Phase, conn_id_of, token_of};
use super::counts::Counts;
use super::options::ServerOptions;
use super::stall::{Stall, StallWatch, Workers};
use super::timers::Timers;
use crate::message::Request;
use crate::session::{Flow, NextRead, Session, SessionError};
use crate::state::{Refusal, StoreState};

const WAKER: Token = Token(usize::MAX);

/// Listener `i` has the token `LISTENER_LAST - i`.
const LISTENER_LAST: usize = usize::MAX - 1;

/// Events taken from the system at a time.
const EVENTS_PER_TURN: usize = 1024;

/// The buffer that all connections are read into. Large enough for many pipelined requests, small
/// enough to stay in the processor's cache.
const READ_BYTES: usize = 64 << 10;

/// Bytes of one connection handled in one turn before the others get theirs.
const TURN_BYTES: usize = 1 << 20;

/// New connections accepted in one turn before the others get theirs. As large as the usual
/// backlog: a connect that finds the backlog full is retried by its system only after a second.
const ACCEPTS_PER_TURN: usize = 4096;

/// How long a peer that has closed its sending side may take to read what is left for it.
const FINISHING_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a refused peer may take to read its last replies and to close.
const REFUSING_TIMEOUT: Duration = Duration::from_secs(1);

/// When to try again to accept after the system had no memory or descriptors to spare.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Keys named in a report of waits that last.
const KEYS_REPORTED_MAX: usize = 3;

const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

pub(super) struct EventLoop {
    poll: Poll,
    listeners: Vec<TcpListener>,
    connections: Connections,
    state: StoreState,
    options: ServerOptions,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    stall: StallWatch,
    read_buffer: Box<[u8]>,
    /// Connections with work left from this turn; no event will come for it.
    ready: VecDeque<Token>,
    /// Listeners that may have more to accept; no event will come for it.
    accept_more: Vec<usize>,
    accept_retry_at: Option<Instant>,
    timers: Timers,
    /// Given up for a moment when the process has no descriptor left, so that the peers at the door
    /// can be turned away instead of waiting for ever.
    spare_file: Option<File>,
}

impl EventLoop {
    pub(super) fn new(
        listeners: Vec<std::net::TcpListener>,
        options: ServerOptions,
        stop: Arc<AtomicBool>,
        counts: Arc<Counts>,
    ) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
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
            state: StoreState::new(),
            stall: StallWatch::new(options.stall_report_after()),
            options,
            stop,
            counts,
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            ready: VecDeque::new(),
            accept_more: Vec::new(),
            accept_retry_at: None,
            timers: Timers::default(),
            spare_file: open_spare_file(),
        };
        Ok((event_loop, waker))
    }

    /// Runs until the stop flag is set and the waker called. All connections close on return.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        while !self.stop.load(Ordering::Acquire) {
            let timeout = self.time_to_sleep();
            if let Err(error) = self.poll.poll(&mut events, timeout) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                log::error!("the store's server cannot wait for its sockets any more: {error}");
                return;
            }
            self.turn(&events);
        }
        log::debug!(
            "store server stops with {} connections",
            self.connections.len()
        );
    }

    fn time_to_sleep(&mut self) -> Option<Duration> {
        if !self.ready.is_empty() || !self.accept_more.is_empty() {
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
        [timer, retry, report].into_iter().flatten().min()
    }

    fn turn(&mut self, events: &Events) {
        let now = Instant::now();
        self.state.set_now(now);
        self.accept_where_possible(events);
        let left_over = self.ready.len();
        for event in events {
            if self.connections.get(event.token()).is_some() {
                self.on_event(event);
            }
        }
        for _ in 0..left_over {
            if let Some(token) = self.ready.pop_front() {
                self.read(token, true);
            }
        }
        self.expire();
        self.flush_touched();
        self.watch_waits(now);
    }

    /// Publishes how many wait, and reports waits that last.
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
            Some((connection.peer, since))
        });
        let Some((oldest_peer, since)) = oldest else {
            // Every wait has a beginning and a connection. If not: silence, and no loop without pause.
            return self.stall.observe(false, || now);
        };
        if !self.stall.is_to_be_reported(since, now) {
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
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.read(token, event.is_read_closed() || event.is_error());
        }
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
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listeners[listener].accept() {
                Ok((stream, peer)) => self.admit(stream, peer, now),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    // The peer gave up, or a signal came: neither is the listener's fault.
                    io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::Interrupted => {}
                    _ => match self.turn_away(listener, &error) {
                        TurnedAway::One => {}
                        // The system asks for a free descriptor before it looks whether anybody
                        // waits, so the error alone does not say that somebody does.
                        TurnedAway::NobodyWaits => return,
                        TurnedAway::Impossible => {
                            log::warn!("cannot accept a connection, trying again soon: {error}");
                            self.accept_retry_at = Some(now + ACCEPT_RETRY);
                            return;
                        }
                    },
                },
            }
        }
        self.accept_more.push(listener);
    }

    /// Out of descriptors: gives up the spare one to accept a connection and close it, which its
    /// peer sees at once.
    fn turn_away(&mut self, listener: usize, error: &io::Error) -> TurnedAway {
        if !matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
            return TurnedAway::Impossible;
        }
        let Some(spare_file) = self.spare_file.take() else {
            self.spare_file = open_spare_file();
            return TurnedAway::Impossible;
        };
        drop(spare_file);
        let refused = self.listeners[listener].accept().map(|(_, peer)| peer);
        self.spare_file = open_spare_file();
        match refused {
            Ok(peer) => {
                log::warn!("refused {peer}: this process has no file descriptor left ({error})");
                TurnedAway::One
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => TurnedAway::NobodyWaits,
            Err(_) => TurnedAway::Impossible,
        }
    }

    fn admit(&mut self, stream: mio::net::TcpStream, peer: SocketAddr, now: Instant) {
        if self.connections.len() >= self.options.connections_max() {
            log::warn!(
                "refused {peer}: {} connections are the limit",
                self.options.connections_max()
            );
            return;
        }
        if let Err(error) = configure_accepted(&stream, &SocketOptions::default()) {
            log::debug!("{peer}: socket options: {error}");
        }
        let deadline = now.checked_add(self.options.hello_timeout());
        let token = self.connections.insert(stream, peer, deadline);
        self.publish_count();
        if let Some(deadline) = deadline {
            self.timers.add(deadline, token);
        }
        self.update_interest(token);
        log::debug!("accepted {peer} as {:?}", conn_id_of(token));
    }

    /// Reads from a connection and carries out what has arrived. With `to_the_end` a short read is
    /// not taken for the last one, as the end of the stream may lie behind it.
    fn read(&mut self, token: Token, to_the_end: bool) {
        let mut budget = TURN_BYTES;
        while let Some(connection) = self.connections.get_mut(token) {
            match connection.phase {
                Phase::Open if connection.paused => return,
                Phase::Open => {}
                Phase::Finishing => return,
                Phase::Refusing => return self.discard(token),
            }
            if std::mem::take(&mut connection.resume) {
                self.process(token, Input::InSession);
                budget = budget.saturating_sub(PAUSE_UNSENT_BYTES);
                if budget == 0 {
                    self.ready.push_back(token);
                    return;
                }
                continue;
            }
            let next_read = connection.session.next_read();
            let (asked, result) = match next_read {
                NextRead::Anywhere => {
                    let result = connection.stream.read(&mut self.read_buffer);
                    (self.read_buffer.len(), result)
                }
                NextRead::Direct { bytes_max } => {
                    let asked = bytes_max.min(budget);
                    let buffer = connection.session.direct_buffer();
                    (asked, recv_into_spare(&connection.stream, buffer, asked))
                }
            };
            let count = match result {
                Ok(0) => return self.on_end_of_stream(token),
                Ok(count) => count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => continue,
                    _ => return self.close(token, &error),
                },
            };
            let input = match next_read {
                NextRead::Anywhere => Input::Shared(count),
                NextRead::Direct { .. } => Input::InSession,
            };
            self.process(token, input);
            budget = budget.saturating_sub(count);
            if count < asked && !to_the_end {
                return;
            }
            if budget == 0 {
                self.ready.push_back(token);
                return;
            }
        }
    }

    /// Carries out the requests in what has arrived, then sends all that came of it.
    fn process(&mut self, token: Token, input: Input) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let mut session = std::mem::take(&mut connection.session);
        let conn = conn_id_of(token);
        let limits = self.options.limits();
        let (state, connections) = (&mut self.state, &mut self.connections);
        let handle = |request: Request<'_>| {
            state.handle(conn, request, connections)?;
            let unsent = connections.get(token).map(|c| c.out.unsent_bytes());
            Ok::<_, Refusal>(match unsent {
                Some(unsent) if unsent < PAUSE_UNSENT_BYTES => Flow::Continue,
                _ => Flow::Pause,
            })
        };
        let outcome = match input {
            Input::Shared(count) => session.receive(&self.read_buffer[..count], limits, handle),
            Input::InSession => session.resume(limits, handle),
        };
        if let Some(connection) = self.connections.get_mut(token) {
            if session.is_greeted() {
                connection.deadline = None;
            }
            connection.session = session;
            connection.paused = outcome == Ok(Flow::Pause);
        }
        if let Err(error) = outcome {
            self.refuse(token, &error);
        }
        self.flush_touched();
    }

    /// Sends what connections have got, and what they get from others that turn out to be dead.
    fn flush_touched(&mut self) {
        while self.connections.has_touched() {
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
        if connection.overflowed {
            let error = io::Error::other(format!(
                "its unread replies exceed the limit of {} bytes",
                self.options.unsent_bytes_max()
            ));
            log::warn!("refused {}: {error}", connection.peer);
            return self.close(token, &error);
        }
        let drained = match connection.out.flush(&mut connection.stream) {
            Ok(drained) => drained,
            Err(error) => return self.close(token, &error),
        };
        if connection.paused && connection.out.unsent_bytes() < PAUSE_UNSENT_BYTES {
            connection.paused = false;
            connection.resume = true;
            self.ready.push_back(token);
        }
        if drained {
            match connection.phase {
                Phase::Open => {}
                Phase::Finishing => return self.close_quietly(token),
                Phase::Refusing => {
                    if let Err(error) = connection.stream.shutdown(Shutdown::Write) {
                        return self.close(token, &error);
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
        let result = match (connection.registered, wanted) {
            (None, Some(wanted)) => registry.register(&mut connection.stream, token, wanted),
            (Some(_), Some(wanted)) => registry.reregister(&mut connection.stream, token, wanted),
            (_, None) => registry.deregister(&mut connection.stream),
        };
        connection.registered = wanted;
        if let Err(error) = result {
            log::warn!("{}: cannot watch the connection: {error}", connection.peer);
            self.close(token, &error);
        }
    }

    /// The peer has closed its sending side. As a client does that only when it ends, its pending
    /// wait is dropped; what it asked for before is still sent.
    fn on_end_of_stream(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if connection.out.is_empty() {
            return self.close_quietly(token);
        }
        connection.phase = Phase::Finishing;
        self.set_deadline(token, FINISHING_TIMEOUT);
        self.forget(token);
        self.update_interest(token);
    }

    fn refuse(&mut self, token: Token, error: &SessionError<Refusal>) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        match error {
            SessionError::Wire(error) => {
                log::warn!("refused {}: {error}", connection.peer);
            }
            SessionError::Refused(error) => {
                log::warn!("refused a request of {}: {error}", connection.peer);
            }
        }
        connection.phase = Phase::Refusing;
        connection.session = Session::default();
        self.set_deadline(token, REFUSING_TIMEOUT);
        self.forget(token);
        self.flush(token);
        // What has arrived already would turn the close into a reset.
        self.discard(token);
    }

    /// Drops what a refused peer still sends, until it closes.
    fn discard(&mut self, token: Token) {
        let mut budget = TURN_BYTES;
        while let Some(connection) = self.connections.get_mut(token) {
            match connection.stream.read(&mut self.read_buffer) {
                Ok(0) if connection.out.is_empty() => return self.close_quietly(token),
                Ok(0) => return,
                Ok(count) => budget = budget.saturating_sub(count),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    _ => return self.close_quietly(token),
                },
            }
            if budget == 0 {
                self.ready.push_back(token);
                return;
            }
        }
    }

    fn set_deadline(&mut self, token: Token, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        if let Some(connection) = self.connections.get_mut(token) {
            connection.deadline = Some(deadline);
            self.timers.add(deadline, token);
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
            match connection.phase {
                Phase::Open => log::warn!(
                    "refused {}: no hello within {:?}",
                    connection.peer,
                    self.options.hello_timeout()
                ),
                Phase::Finishing => log::warn!(
                    "{}: {} bytes of replies left unread for {FINISHING_TIMEOUT:?}",
                    connection.peer,
                    connection.out.unsent_bytes()
                ),
                Phase::Refusing => {}
            }
            self.close_quietly(token);
        }
    }

    fn close(&mut self, token: Token, error: &io::Error) {
        if let Some(connection) = self.connections.get(token) {
            log::debug!("{}: {error}", connection.peer);
        }
        self.close_quietly(token);
    }

    fn close_quietly(&mut self, token: Token) {
        if let Some(connection) = self.connections.remove(token) {
            log::debug!("closed {} ({:?})", connection.peer, conn_id_of(token));
            // The socket is closed before anyone is woken by its end.
            drop(connection);
            self.publish_count();
            self.forget(token);
        }
    }

    fn publish_count(&self) {
        self.counts
            .connections
            .store(self.connections.len(), Ordering::Release);
    }

    /// Takes a connection out of the store: its wait, and a wake that another can use. The other is
    /// told by the next [`flush_touched`](Self::flush_touched) and not from here: thousands of dead
    /// peers in one queue's line would each call for the next one from within the last.
    fn forget(&mut self, token: Token) {
        self.state
            .disconnect(conn_id_of(token), &mut self.connections);
    }
}

/// What came of turning a peer away.
#[derive(Debug, Clone, Copy)]
enum TurnedAway {
    One,
    NobodyWaits,
    Impossible,
}

/// Where a piece of input is.
#[derive(Debug, Clone, Copy)]
enum Input {
    /// So many bytes in the shared read buffer.
    Shared(usize),
    /// In the session already: read there directly, or left there by a pause.
    InSession,
}

fn open_spare_file() -> Option<File> {
    File::open("/dev/null").ok()
}
