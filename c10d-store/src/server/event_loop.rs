//! The server's only thread: moves bytes between sockets, parsers and the store.
//!
//! Makes no protocol decisions. One iteration: accept; for each readable socket, read, pass the
//! requests to the state, and send each connection its replies with one write; then the timers.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use c10d_socket::{
    AcceptLimits, Acceptor, Listeners, TlsServer, limit_unsent, recv_into_spare,
    release_freed_memory,
};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use self::paused_inputs::PausedInputs;
use super::connection::{
    Accepted, Carrier, Connection, Connections, PAUSE_UNSENT_BYTES, Phase, RequestFlow, conn_id_of,
};
use super::counts::Counts;
use super::extensions::Extensions;
use super::options::ServerOptions;
use super::recover::ServedJournal;
use super::session_requests::Hello;
use super::timers::Timers;
use super::turn::TurnClock;
use crate::message::{CloseReason, Request};
use crate::moment::Moment;
use crate::request_parser::{Flow, NextRead, ParseError};
use crate::state::{Refusal, StoreState};

mod acceptance;
#[cfg(feature = "extensions")]
mod clients;
mod ends;
#[cfg(feature = "extensions")]
mod extensions;
#[cfg(feature = "extensions")]
mod journal;
mod memory_relief;
#[cfg(feature = "extensions")]
mod observers;
mod output;
mod paused_inputs;
#[cfg(not(feature = "extensions"))]
mod plain;
#[cfg(feature = "extensions")]
mod sessions;

const WAKER: Token = Token(usize::MAX);

/// The most TLS handshakes at a time. A legitimate peer takes a round trip and 0.3 ms of this server, so thousands of
/// them can return at once; each handshake holds about 10 KB.
const HANDSHAKES_MAX: usize = 8192;

/// Events returned by one poll.
const EVENTS_PER_ITERATION: usize = 1024;

/// The size of the read buffer shared by all connections: large enough for many pipelined requests,
/// small enough to stay in the CPU cache.
const READ_BYTES: usize = 64 << 10;

/// The bytes of replies that the system takes and cannot send yet. Without a limit it copies megabytes for each of thousands
/// of peers that do not read, and other peers wait. With less, values of a megabyte take longer to send, because each part costs
/// an event.
const SYSTEM_UNSENT_BYTES: u32 = 1 << 20;

/// The most bytes of one connection handled in one iteration, for fairness.
const BYTES_PER_ITERATION: usize = 1 << 20;

pub(super) struct EventLoop {
    poll: Poll,
    listeners: Listeners<TcpListener, TcpStream>,
    connections: Connections,
    state: StoreState,
    options: ServerOptions,
    /// The TLS server. If it is set, connections without TLS are strangers.
    tls: Option<TlsServer>,
    acceptor: Acceptor<Token>,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    started: Instant,
    traffic: Traffic,
    read_buffer: Box<[u8]>,
    /// The opened bytes that a TLS connection has received.
    opened: Vec<u8>,
    /// Connections and sessions with work left from an earlier turn, for which no event will arrive.
    ready: VecDeque<Ready>,
    turn: TurnClock,
    timers: Timers,
    /// Empty without the feature `extensions`.
    extensions: Extensions,
    /// The time to find out what peers have read, if they share values that are no longer stored.
    look_at: Option<Instant>,
    inputs: PausedInputs,
}

impl EventLoop {
    pub(super) fn new(
        listeners: Vec<std::net::TcpListener>,
        options: ServerOptions,
        tls: Option<TlsServer>,
        stop: Arc<AtomicBool>,
        counts: Arc<Counts>,
        journal: ServedJournal,
    ) -> io::Result<(Self, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let register = |listener: std::net::TcpListener, token| {
            if let Err(error) = limit_unsent(&listener, SYSTEM_UNSENT_BYTES) {
                log::debug!("cannot limit what the system takes for each connection: {error}");
            }
            let mut listener = TcpListener::from_std(listener);
            poll.registry()
                .register(&mut listener, Token(token), Interest::READABLE)?;
            Ok(listener)
        };
        let listeners = Listeners::new(listeners, register, TcpListener::accept)?;
        let limits = AcceptLimits {
            connections_max: options.connections_max(),
            handshakes_max: HANDSHAKES_MAX,
        };
        let acceptor = listeners.acceptor(limits, Instant::now());
        let (extensions, state) = Extensions::new(journal, &options, &counts, &waker)?;
        let event_loop = Self {
            poll,
            listeners,
            connections: Connections::new(options.unsent_bytes_max()),
            state,
            options,
            tls,
            acceptor,
            stop,
            counts,
            started: Instant::now(),
            traffic: Traffic::default(),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            opened: Vec::new(),
            ready: VecDeque::new(),
            turn: TurnClock::new(Instant::now()),
            timers: Timers::default(),
            extensions,
            look_at: None,
            inputs: PausedInputs::default(),
        };
        Ok((event_loop, waker))
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
                log::error!("the store server stops, because it cannot poll its sockets: {error}");
                return;
            }
            let has_events = events.iter().any(|event| event.token() != WAKER);
            if !self.follow_journal(has_events) {
                return;
            }
            self.handle_events(&events, has_events);
        }
        self.end_journal();
        log::debug!(
            "the store server stops with {} connections",
            self.connections.len()
        );
    }

    fn time_to_sleep(&mut self) -> Option<Duration> {
        let has_work = !self.ready.is_empty()
            || self.connections.has_touched_clients()
            || self.can_continue_inputs()
            || self.have_extensions_work();
        if has_work || self.acceptor.has_ready() {
            return Some(Duration::ZERO);
        }
        let connections = &self.connections;
        let of_connection = self.timers.next(|at, token| {
            let connection = connections.get(token).and_then(Connection::accepted);
            connection.is_some_and(|accepted| accepted.deadline == Some(at))
        });
        let next = [
            of_connection,
            self.acceptor.next_deadline(),
            self.look_at,
            self.inputs.next(),
            self.next_of_extensions(),
        ];
        let next = next.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn handle_events(&mut self, events: &Events, has_events: bool) {
        let now = Instant::now();
        self.state
            .set_now(Moment::from(now.saturating_duration_since(self.started)));
        let memory_max = self.counts.memory_max.load(Ordering::Acquire);
        self.state
            .set_memory_max((memory_max > 0).then_some(memory_max));
        self.connections.reports_refusals = memory_max > 0;
        self.acceptor.next_turn(now);
        self.turn.start_iteration(now);
        self.accept_where_possible(events, now);
        let left_over = self.ready.len();
        for event in events {
            if self.is_stopping() {
                return;
            }
            if self.connections.get(event.token()).is_some() {
                self.on_event(event);
                self.relieve();
            }
        }
        self.serve_ready(left_over);
        self.expire();
        self.advance_extensions(now);
        self.continue_inputs(now);
        self.turn.start_turn();
        self.flush_touched();
        self.relieve();
        // First, so that an observer that has its answer reads a count that is as new.
        self.counts
            .waiting
            .store(self.state.waiting(), Ordering::Release);
        self.finish_extensions(has_events, now);
        if let Some(line) = self.acceptor.report(now) {
            log::warn!("{line}");
        }
        self.look_at_lent(now);
        let kept_bytes = self.connections.budget.taken();
        if self.state.take_released(kept_bytes) {
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
            self.relieve();
            if self.turn.is_iteration_over() {
                return;
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Has a connection whose requests have waited carry them out after the other connections.
    fn resume(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(token)
            && connection.flow == RequestFlow::Paused
        {
            connection.flow = RequestFlow::Resumed;
            self.serve_later(token);
        }
    }

    /// Has a connection read again after the other connections.
    fn serve_later(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push_back(Ready::Connection(token));
        }
    }

    fn on_event(&mut self, event: &Event) {
        let token = event.token();
        if event.is_writable() {
            self.flush(token);
        }
        if !(event.is_readable() || event.is_read_closed() || event.is_error()) {
            return;
        }
        // It has had its turn, or has it in the next iteration.
        let connection = self.connections.get(token);
        if self.turn.is_iteration_over() || connection.is_some_and(|it| it.is_ready) {
            return self.serve_later(token);
        }
        self.read(token, event.is_read_closed() || event.is_error());
    }

    /// Reads from a connection and handles the requests. With `to_the_end` a short read is not the last
    /// one, since the end of the stream may follow.
    fn read(&mut self, token: Token, to_the_end: bool) {
        let mut budget = BYTES_PER_ITERATION;
        self.turn.start_turn();
        loop {
            let is_full = self.connections.is_full();
            let Some(connection) = self.connections.get_mut(token) else {
                return;
            };
            match connection.phase {
                Phase::Open if connection.flow.is_paused() => return,
                Phase::Open => {}
                Phase::Finishing => return,
                Phase::Refusing => return self.discard(token),
            }
            if connection.client().is_some() {
                return self.resume_client(token);
            }
            if is_full && connection.link().is_none() {
                connection.set_flow(RequestFlow::Paused);
                self.pause_if_full(token);
                return;
            }
            if connection.take_resumed() {
                self.process(token, Input::InParser);
                budget = budget.saturating_sub(PAUSE_UNSENT_BYTES);
                if budget == 0 || self.turn.is_turn_over() {
                    return self.serve_later(token);
                }
                continue;
            }
            if connection.needs_input_turn() && self.must_pause_input(token) {
                if let Some(connection) = self.connections.get_mut(token) {
                    connection.set_flow(RequestFlow::Paused);
                }
                return;
            }
            let Some(Connection {
                carrier: Carrier::Socket(accepted),
                parser,
                ..
            }) = self.connections.get_mut(token)
            else {
                return;
            };
            let has_tls = accepted.tls.is_some();
            let next_read = if has_tls {
                NextRead::Anywhere
            } else {
                parser.next_read()
            };
            let link = accepted.link();
            if link.is_some_and(|slot| self.extensions.has_backlog(slot)) {
                // The session reads on once it has carried out what has arrived.
                return;
            }
            let stream = &mut accepted.stream;
            let (asked, result) = match next_read {
                NextRead::Anywhere => {
                    let result = stream.read(&mut self.read_buffer);
                    (self.read_buffer.len(), result)
                }
                NextRead::Direct { bytes_max } => {
                    let asked = bytes_max.min(budget);
                    let buffer = parser.direct_buffer();
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
                NextRead::Anywhere if has_tls => self.open(token, count),
                NextRead::Anywhere if parser.is_new() => self.classify(token, count),
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

    /// Opens what a TLS connection has received. `None` if it is closed.
    fn open(&mut self, token: Token, count: usize) -> Option<Input> {
        let connection = self.connections.get_mut(token)?;
        let layer = connection.accepted_mut()?.tls.as_mut()?;
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

    /// Handles the requests in the input, then sends all new replies.
    fn process(&mut self, token: Token, input: Input) {
        match self.with_input(input, |this, bytes| this.feed(token, bytes)) {
            Ok(None) => {}
            Ok(Some(hello)) => self.attach(token, &hello),
            Err(error) => self.refuse(token, &error),
        }
        self.connections.recount(token);
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
        let mut parts = self
            .extensions
            .parts(&mut self.state, &mut self.connections);
        let carried = parts.carried(token);
        let turn = &mut self.turn;
        let mut must_wait = false;
        let handle = |request: Request<'_>| {
            let before = parts.state.work();
            let (mut done, mut begun, mut may_sweep) = (None, None, false);
            // The only check before a plain request is carried out: for extensions, scarce memory and wakeups to pass on.
            if parts.must_check(carried, &request) {
                let checked = parts.check(token, carried, &request)?;
                (done, begun, may_sweep) = (checked.done, checked.begun, checked.may_sweep);
                hello = checked.hello;
            } else {
                parts.state.note_request(conn, &request);
            }
            // The only call, so that the compiler sees the path of a request as a whole.
            let result = match done {
                None => parts.state.carry_out(conn, request, parts.connections),
                Some(result) => result,
            };
            if let Some(begun) = begun
                && result.is_ok()
            {
                parts.finish(begun);
            }
            parts.record_woken();
            turn.spend(parts.state.work().wrapping_sub(before), Instant::now);
            result?;
            if may_sweep
                && parts.state.is_sweeping_for(conn)
                && let Some(connection) = parts.connections.get_mut(token)
            {
                connection.set_flow(RequestFlow::Deleting);
            }
            must_wait = hello.is_some() || !parts.connections.may_continue(token);
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
        self.limit_gathered();
        if let Some(connection) = self.connections.get_mut(token) {
            if parser.is_handshake_done()
                && let Some(accepted) = connection.accepted_mut()
                && accepted.deadline.take().is_some()
            {
                note_peer(&self.counts, accepted);
            }
            connection.parser = parser;
            let has_stopped = outcome == Ok(Flow::Pause);
            if has_stopped && must_wait {
                if connection.flow != RequestFlow::Deleting {
                    connection.set_flow(RequestFlow::Paused);
                }
            } else if has_stopped {
                connection.set_flow(RequestFlow::Resumed);
                self.serve_later(token);
            }
            self.pause_if_full(token);
        }
        outcome.map(|_| hello)
    }
}

/// Remembers the client if it is on another host. A connection within a host has the same address at both ends, unless it
/// is bound to another.
fn note_peer(counts: &Counts, accepted: &Accepted) {
    let peer = accepted.peer.ip().to_canonical();
    if !peer.is_loopback()
        && let Ok(local) = accepted.stream.local_addr()
        && local.ip().to_canonical() != peer
    {
        counts.note_peer(peer, local.ip().to_canonical());
    }
}

/// Totals that only the event loop has.
#[derive(Debug, Default)]
struct Traffic {
    received_bytes: u64,
    sent_bytes: u64,
}

/// An input that is served again without an event.
#[derive(Debug, Clone, Copy)]
enum Ready {
    Connection(Token),
    /// The session in this slot, which has a backlog.
    Session(usize),
}

/// Where the input is.
#[derive(Debug, Clone, Copy)]
enum Input {
    /// This number of bytes in the shared read buffer.
    Shared(usize),
    /// What TLS has opened, perhaps nothing.
    Opened,
    /// The input is in the parser: it was read directly into it, or is kept there by a pause.
    InParser,
}
