//! The relay's thread: moves bytes between the ranks, the hub and the link to the store.
//!
//! Decides nothing about requests. One turn: accept, read from ranks and from the link, then send.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
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
use crate::link::Link;
use crate::options::RelayOptions;
use crate::status::{Status, Upstream};
use crate::tunnel::Tunnel;

mod admission;
mod ranks;
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

fn is_readable(event: &Event) -> bool {
    event.is_readable() || has_ended(event)
}

fn has_ended(event: &Event) -> bool {
    event.is_read_closed() || event.is_error()
}
