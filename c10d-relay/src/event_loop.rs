//! The relay's thread: moves bytes between the ranks, the hub and the link to the store.
//!
//! This file has the turn and the connections of ranks; the files below it have the link, new connections and tunnels.
//! Decides nothing about requests. One turn: accept, read from ranks and from the link, then send.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use c10d_socket::{AcceptLimits, Acceptor, Deadline, Listeners, Stage};
use c10d_store::StoreAddress;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::connector::Connector;
use crate::hub::Hub;
use crate::link::{Link, SHORT_READ_DRAINS};
use crate::options::RelayOptions;
use crate::status::{Status, Upstream};
use crate::tunnel::{Tunnel, is_http};

mod admission;
mod tunnels;
mod upstream;

const WAKER: Token = Token(usize::MAX);
const LINK: Token = Token(usize::MAX - 1);

/// The most connections of a session that the store serves.
const CONNECTIONS_MAX: usize = 65_536;

/// The most connections that have sent a part of their handshake. Ranks send it in one piece.
const HANDSHAKES_MAX: usize = 1024;

const EVENTS_PER_TURN: usize = 1024;
const READ_BYTES: usize = 64 << 10;

/// The most bytes of one rank handled in one turn.
const BYTES_PER_TURN: usize = 1 << 20;

/// How long a rank whose connection the store has closed may take to read its last replies and to close.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// A rank's connection.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    /// The deadline of the handshake, or of closing.
    close_at: Option<Instant>,
    /// The sending side is closed.
    is_shut: bool,
    stage: Stage,
}

impl Connection {
    /// Closes it at this time, or at an earlier time that was set before.
    fn close_by(&mut self, at: Instant) {
        self.close_at = Some(self.close_at.map_or(at, |before| before.min(at)));
    }
}

/// The connections by the numbers of their clients, which are their tokens and far below the listeners' tokens.
type Connections = BTreeMap<u32, Connection>;

/// The tunnels by the numbers of their clients.
type Tunnels = BTreeMap<u32, Tunnel<TcpStream>>;

#[derive(Debug)]
pub(crate) struct EventLoop {
    poll: Poll,
    listeners: Listeners<TcpListener, TcpStream>,
    acceptor: Acceptor<u32>,
    hub: Hub,
    connections: Connections,
    tunnels: Tunnels,
    connector: Connector,
    target: StoreAddress,
    options: RelayOptions,
    link: Option<Link>,
    /// The address of the store at the last link.
    store_address: Option<SocketAddr>,
    /// The relay is stopping: the deadline, and whether the store was informed.
    finishing: Option<(Deadline, bool)>,
    /// The link is lost if nothing has arrived before this time.
    silent_at: Option<Instant>,
    /// A session has begun, and continues over the next link.
    has_session: bool,
    is_connecting: bool,
    lost_at: Option<Instant>,
    report_at: Option<Instant>,
    status: Arc<Status>,
    read_buffer: Box<[u8]>,
    /// Ranks with work left, for which no event will arrive.
    ready: BTreeSet<u32>,
    is_link_ready: bool,
    /// The store has closed its side of the link, or the link has failed: no further event may follow.
    has_link_ended: bool,
}

/// The parts of an event loop.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) poll: Poll,
    pub(crate) listeners: Vec<std::net::TcpListener>,
    pub(crate) hub: Hub,
    pub(crate) connector: Connector,
    pub(crate) target: StoreAddress,
    pub(crate) options: RelayOptions,
    pub(crate) status: Arc<Status>,
}

/// Makes the waker of a poll.
pub(crate) fn waker_of(poll: &Poll) -> io::Result<Arc<Waker>> {
    Ok(Arc::new(Waker::new(poll.registry(), WAKER)?))
}

impl EventLoop {
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        let register = |listener, token| {
            let mut listener = TcpListener::from_std(listener);
            let registry = parts.poll.registry();
            registry.register(&mut listener, Token(token), Interest::READABLE)?;
            Ok(listener)
        };
        let listeners = Listeners::new(parts.listeners, register, TcpListener::accept)?;
        let limits = AcceptLimits {
            connections_max: CONNECTIONS_MAX,
            handshakes_max: HANDSHAKES_MAX,
        };
        let mut event_loop = Self {
            poll: parts.poll,
            acceptor: listeners.acceptor(limits, Instant::now()),
            listeners,
            hub: parts.hub,
            connections: Connections::new(),
            tunnels: Tunnels::new(),
            connector: parts.connector,
            target: parts.target,
            options: parts.options,
            link: None,
            store_address: None,
            finishing: None,
            silent_at: None,
            has_session: false,
            is_connecting: false,
            lost_at: None,
            report_at: None,
            status: parts.status,
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            ready: BTreeSet::new(),
            is_link_ready: false,
            has_link_ended: false,
        };
        event_loop.connect(Instant::now());
        Ok(event_loop)
    }

    /// Runs until the stop flag is set and the waker is called. All connections close on return.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        while !self.status.stop.load(Ordering::Acquire) && !self.is_finished() {
            let timeout = self.time_to_sleep();
            if let Err(error) = self.poll.poll(&mut events, timeout) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                log::error!("the relay stops, because it cannot poll its sockets: {error}");
                break;
            }
            self.turn(&events);
        }
        if !self.hub.is_ended() {
            self.say_goodbye();
        }
        self.status.set(Upstream::Stopped);
    }

    fn time_to_sleep(&self) -> Option<Duration> {
        let has_ready = !self.ready.is_empty() || self.tunnels.values().any(Tunnel::is_ready);
        if has_ready || self.acceptor.has_ready() || self.may_read_link() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let closing = self.connections.values().filter_map(|it| it.close_at).min();
        let tunnels = self.tunnels.values().map(Tunnel::close_at).min();
        let next = [
            self.report_at,
            self.acceptor.next_deadline(),
            closing,
            tunnels,
            self.hub.next_cancel(),
            self.silent_at,
            self.finishing.and_then(|(by, _)| by.instant()),
        ];
        let next = next.into_iter().flatten().min();
        next.map(|at| at.saturating_duration_since(now))
    }

    fn turn(&mut self, events: &Events) {
        let now = Instant::now();
        self.acceptor.next_turn(now);
        // The ranks to read, and whether to the end of the stream, for which no event may follow.
        let ready = std::mem::take(&mut self.ready);
        let mut readable: BTreeMap<u32, bool> =
            ready.into_iter().map(|client| (client, true)).collect();
        for event in events {
            match event.token() {
                WAKER => {}
                LINK => {
                    self.is_link_ready |= is_readable(event);
                    self.has_link_ended |= has_ended(event);
                }
                Token(token) => {
                    if self.on_tunnel_event(token) {
                        continue;
                    }
                    let Ok(client) = u32::try_from(token) else {
                        self.acceptor.on_event(token);
                        continue;
                    };
                    if event.is_writable() {
                        self.flush_rank(client);
                    }
                    if is_readable(event) {
                        *readable.entry(client).or_default() |= has_ended(event);
                    }
                }
            }
        }
        self.take_outcomes(now);
        self.accept(now);
        for (client, to_the_end) in readable {
            self.read_rank(client, to_the_end, now);
        }
        if self.may_read_link() {
            self.read_link();
        }
        self.watch_silence(now);
        self.hub.answer_cancels(now);
        self.hub.end_turn();
        self.serve_touched(now);
        self.serve_tunnels(now);
        self.flush_link(now);
        self.close_late(now);
        self.finish(now);
        if let Some(line) = self.acceptor.report(now) {
            log::warn!("{line}");
        }
        self.status.set_connections(self.connections.len());
    }
}

/// The connections of ranks: reads their requests and sends their replies.
impl EventLoop {
    fn read_rank(&mut self, client: u32, to_the_end: bool, now: Instant) {
        let mut budget = BYTES_PER_TURN;
        while let Some(connection) = self.connections.get_mut(&client) {
            let is_closing = match self.hub.rank(client) {
                Some(rank) if rank.is_paused => return,
                Some(rank) => rank.is_closing(),
                None => true,
            };
            let count = match connection.stream.read(&mut self.read_buffer) {
                Ok(0) => return self.close_rank(client),
                Ok(count) => count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => continue,
                    _ => {
                        log::debug!("{}: {error}", connection.peer);
                        return self.close_rank(client);
                    }
                },
            };
            let peer = connection.peer;
            let is_new = connection.stage == Stage::Silent;
            if is_new && is_http(self.read_buffer[0]) {
                return self.open_tunnel(client, count, now);
            }
            if is_new && self.link.is_none() && !self.is_connecting {
                self.connect(now);
            }
            if !is_closing {
                let result = self.hub.receive(client, &self.read_buffer[..count], now);
                if let Err(error) = result {
                    self.refuse(peer, &error);
                    return self.close_rank(client);
                }
            }
            self.advance_handshake(client);
            if count < self.read_buffer.len() && !to_the_end && SHORT_READ_DRAINS {
                return;
            }
            budget = budget.saturating_sub(count);
            if budget == 0 {
                self.ready.insert(client);
                return;
            }
        }
    }

    /// Sends replies, continues with paused ranks, and closes ranks that the store has closed.
    fn serve_touched(&mut self, now: Instant) {
        for client in self.hub.take_touched() {
            let was_paused = self.hub.rank(client).is_some_and(|rank| rank.is_paused);
            // This includes a rank that has closed its connection, and whose requests are not all sent.
            if let Err(error) = self.hub.resume(client, now) {
                if let Some(connection) = self.connections.get(&client) {
                    self.refuse(connection.peer, &error);
                }
                self.close_rank(client);
                continue;
            }
            if was_paused && self.hub.rank(client).is_some_and(|rank| !rank.is_paused) {
                self.ready.insert(client);
            }
            self.flush_rank(client);
        }
        // The resumed requests belong to this turn.
        self.hub.end_turn();
    }

    fn flush_rank(&mut self, client: u32) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        let Some(rank) = self.hub.rank(client) else {
            return;
        };
        let unsent = rank.down.unsent_bytes();
        let result = rank.down.flush(&mut connection.stream);
        let closing = rank.client.end;
        let read = unsent - rank.down.unsent_bytes();
        self.hub.was_read(client, read);
        match result {
            Err(error) => {
                log::debug!("{}: {error}", connection.peer);
                self.close_rank(client);
            }
            Ok(is_drained) => {
                let Some(reason) = closing else {
                    return;
                };
                // Its input is discarded until it closes, so that the system sends no reset.
                connection.close_by(Instant::now() + CLOSING_TIMEOUT);
                if is_drained && !connection.is_shut {
                    connection.is_shut = true;
                    // It fails if the rank has closed its connection.
                    let _ = connection.stream.shutdown(Shutdown::Write);
                    self.ready.insert(client);
                    let peer = connection.peer;
                    let text = format_args!("the connection of {peer} ends: {reason}");
                    self.log_about(peer.ip(), &text);
                }
            }
        }
    }

    fn close_rank(&mut self, client: u32) {
        self.hub.close(client);
        self.connections.remove(&client);
    }

    fn close_late(&mut self, now: Instant) {
        let connections = self.connections.iter();
        let late = connections.filter(|(_, it)| it.close_at.is_some_and(|at| at <= now));
        let late: Vec<_> = late
            .map(|(client, it)| (*client, it.peer, it.stage))
            .collect();
        for (client, peer, stage) in late {
            if stage != Stage::Served {
                let limit = self.options.handshake_timeout();
                self.refuse(peer, &format_args!("no handshake within {limit:?}"));
            }
            self.close_rank(client);
        }
    }
}

fn is_readable(event: &Event) -> bool {
    event.is_readable() || has_ended(event)
}

fn has_ended(event: &Event) -> bool {
    event.is_read_closed() || event.is_error()
}
