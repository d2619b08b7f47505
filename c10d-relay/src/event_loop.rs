//! The relay's thread: moves bytes between the ranks, the hub and the link to the store.
//!
//! Decides nothing about requests. One turn: accept, read from ranks and from the link, then send.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use c10d_socket::{
    Deadline, HostPort, RefusalLog, SocketOptions, configure_accepted, loopback_user, own_user,
};
use c10d_store::SessionError;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::connector::{Connector, Order};
use crate::http::{self, StoreState, is_http};
use crate::hub::Hub;
use crate::link::{Link, LinkState, SHORT_READ_DRAINS};
use crate::status::{Status, Upstream};

const WAKER: Token = Token(usize::MAX);
const LINK: Token = Token(usize::MAX - 1);

/// Listener `i` has the token `LISTENER_LAST - i`; ranks have their numbers, which are far below.
const LISTENER_LAST: usize = usize::MAX - 2;

const EVENTS_PER_TURN: usize = 1024;
const READ_BYTES: usize = 64 << 10;

/// The most bytes of one rank handled in one turn.
const BYTES_PER_TURN: usize = 1 << 20;

/// The most connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 1024;

/// The delay before accepting again after the system had no memory or descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How long a rank whose connection the store has closed may take to read its last replies and to close.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an HTTP client may take for its request, and to close.
const HTTP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after the last bytes of the store it is told that they have arrived, if there is nothing else to send: it
/// keeps them until then.
const REPORT_DELAY: Duration = Duration::from_millis(200);

/// A rank's connection.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    /// Set once the last replies are sent, or have to be soon.
    close_at: Option<Instant>,
    /// The sending side is closed.
    is_shut: bool,
    /// Nothing has been received.
    is_new: bool,
    /// The start of an HTTP request.
    http_head: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(crate) struct EventLoop {
    poll: Poll,
    listeners: Vec<TcpListener>,
    hub: Hub,
    connections: BTreeMap<u32, Connection>,
    connector: Connector,
    target: HostPort,
    resume_timeout: Duration,
    refused_timeout: Duration,
    link: Option<Link>,
    /// The address of the store, as of the last link.
    store_address: Option<SocketAddr>,
    /// The relay ends: the deadline, and whether the store was told.
    finishing: Option<(Deadline, bool)>,
    /// A session has begun, and goes on over the next link.
    has_session: bool,
    is_connecting: bool,
    lost_at: Option<Instant>,
    report_at: Option<Instant>,
    accept_retry_at: Option<Instant>,
    status: Arc<Status>,
    refusals: RefusalLog,
    read_buffer: Box<[u8]>,
    /// Ranks and listeners with work left, for which no event comes.
    ready: BTreeSet<u32>,
    accept_more: BTreeSet<usize>,
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
    pub(crate) target: HostPort,
    pub(crate) resume_timeout: Duration,
    pub(crate) refused_timeout: Duration,
    pub(crate) status: Arc<Status>,
}

/// Makes the waker of a poll.
pub(crate) fn waker_of(poll: &Poll) -> io::Result<Arc<Waker>> {
    Ok(Arc::new(Waker::new(poll.registry(), WAKER)?))
}

impl EventLoop {
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        let mut listeners = Vec::with_capacity(parts.listeners.len());
        for (index, listener) in parts.listeners.into_iter().enumerate() {
            listener.set_nonblocking(true)?;
            let mut listener = TcpListener::from_std(listener);
            let registry = parts.poll.registry();
            registry.register(
                &mut listener,
                Token(LISTENER_LAST - index),
                Interest::READABLE,
            )?;
            listeners.push(listener);
        }
        let mut event_loop = Self {
            poll: parts.poll,
            listeners,
            hub: parts.hub,
            connections: BTreeMap::new(),
            connector: parts.connector,
            target: parts.target,
            resume_timeout: parts.resume_timeout,
            refused_timeout: parts.refused_timeout,
            link: None,
            store_address: None,
            finishing: None,
            has_session: false,
            is_connecting: false,
            lost_at: None,
            report_at: None,
            accept_retry_at: None,
            status: parts.status,
            refusals: RefusalLog::new(Instant::now()),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            ready: BTreeSet::new(),
            accept_more: BTreeSet::new(),
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
                log::error!("the relay stops, as it cannot poll its sockets: {error}");
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
        if !self.ready.is_empty() || !self.accept_more.is_empty() || self.may_read_link() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let closing = self.connections.values().filter_map(|it| it.close_at).min();
        let next = [
            self.report_at,
            self.accept_retry_at,
            self.refusals.due(),
            closing,
            self.hub.next_cancel(),
            self.finishing.and_then(|(by, _)| by.instant()),
        ];
        let next = next.into_iter().flatten().min();
        next.map(|at| at.saturating_duration_since(now))
    }

    fn turn(&mut self, events: &Events) {
        let now = Instant::now();
        if self.accept_retry_at.is_some_and(|at| at <= now) {
            self.accept_retry_at = None;
            self.accept_more.extend(0..self.listeners.len());
        }
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
                Token(token) => match u32::try_from(token) {
                    Ok(client) => {
                        if event.is_writable() {
                            self.flush_rank(client);
                        }
                        if is_readable(event) {
                            *readable.entry(client).or_default() |= has_ended(event);
                        }
                    }
                    Err(_) => {
                        self.accept_more.insert(LISTENER_LAST - token);
                    }
                },
            }
        }
        self.take_outcomes(now);
        for listener in std::mem::take(&mut self.accept_more) {
            self.accept(listener, now);
        }
        for (client, to_the_end) in readable {
            self.read_rank(client, to_the_end, now);
        }
        if self.may_read_link() {
            self.is_link_ready = false;
            self.read_link();
        }
        self.hub.answer_cancels(now);
        self.hub.end_turn();
        self.serve_touched(now);
        self.flush_link(now);
        self.close_late(now);
        self.finish(now);
        if let Some(line) = self.refusals.report(now) {
            log::warn!("{line}");
        }
        self.status.set_connections(self.connections.len());
    }

    fn accept(&mut self, index: usize, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get(index) else {
                return;
            };
            match listener.accept() {
                Ok((stream, peer)) => self.admit(stream, peer, now),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::Interrupted => {}
                    _ => {
                        let text = format_args!(
                            "the relay cannot accept connections, retrying soon: {error}"
                        );
                        self.log_about(None, &text, now);
                        self.accept_retry_at = Some(now + ACCEPT_RETRY);
                        return;
                    }
                },
            }
        }
        self.accept_more.insert(index);
    }

    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, now: Instant) {
        let user = stream
            .local_addr()
            .and_then(|local| loopback_user(local, peer));
        match user {
            Ok(user) if user == Some(own_user()) => {}
            Ok(_) => return self.refuse(peer, &"it is not of the user that runs this relay", now),
            Err(error) => {
                let reason = format!("its user cannot be found out: {error}");
                return self.refuse(peer, &reason, now);
            }
        }
        if let Err(error) = configure_accepted(&stream, &SocketOptions::default()) {
            log::debug!("{peer}: cannot set socket options: {error}");
        }
        let Some(client) = self.hub.open(peer.port()) else {
            return self.refuse(peer, &"this relay has served 4 billion connections", now);
        };
        let both = Interest::READABLE | Interest::WRITABLE;
        let token = Token(client as usize);
        if let Err(error) = self.poll.registry().register(&mut stream, token, both) {
            let text = format_args!("{peer}: cannot register the connection: {error}");
            self.log_about(peer.ip(), &text, now);
            return self.hub.close(client);
        }
        let connection = Connection {
            stream,
            peer,
            close_at: None,
            is_shut: false,
            is_new: true,
            http_head: None,
        };
        self.connections.insert(client, connection);
    }

    /// Logs why a peer is refused, unless there are too many such lines.
    fn refuse(&mut self, peer: SocketAddr, reason: &dyn fmt::Display, now: Instant) {
        self.log_about(peer.ip(), &format_args!("refused {peer}: {reason}"), now);
    }

    /// Logs what a peer has caused, unless there are too many such lines.
    fn log_about(
        &mut self,
        address: impl Into<Option<IpAddr>>,
        text: &dyn fmt::Display,
        now: Instant,
    ) {
        if let Some(line) = self.refusals.line(address, text, now) {
            log::warn!("{line}");
        }
    }

    fn read_rank(&mut self, client: u32, to_the_end: bool, now: Instant) {
        let mut budget = BYTES_PER_TURN;
        while let Some(connection) = self.connections.get_mut(&client) {
            let is_closing = match self.hub.rank(client) {
                Some(rank) if rank.is_paused => return,
                Some(rank) => rank.is_closing,
                // Also for one that has spoken HTTP.
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
            let is_new = std::mem::take(&mut connection.is_new);
            if is_new && is_http(self.read_buffer[0]) {
                connection.http_head = Some(Vec::new());
            } else if is_new && self.link.is_none() && !self.is_connecting {
                self.connect(now);
            }
            let Some(connection) = self.connections.get_mut(&client) else {
                return;
            };
            if let Some(head) = &mut connection.http_head {
                head.extend_from_slice(&self.read_buffer[..count]);
                self.answer_http(client, now);
            } else if !is_closing {
                let result = self.hub.receive(client, &self.read_buffer[..count], now);
                if let Err(error) = result {
                    let peer = connection.peer;
                    self.refuse(peer, &error, now);
                    return self.close_rank(client);
                }
            }
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

    /// Answers an HTTP request once its head is there. The connection is not one of a rank then.
    fn answer_http(&mut self, client: u32, now: Instant) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        let head = connection.http_head.take().unwrap_or_default();
        let reason = match self.status.get() {
            Upstream::Failed(error) => error.to_string(),
            _ => {
                let lost_at = self.lost_at.unwrap_or(now);
                let age = now.saturating_duration_since(lost_at).as_secs();
                format!("it has had no connection to it for {age} s")
            }
        };
        let store = StoreState {
            target: self.target.clone(),
            connected: self.store_address.filter(|_| self.link.is_some()),
            reason,
        };
        connection.close_at.get_or_insert(now + HTTP_TIMEOUT);
        match http::answer(&head, &store) {
            None => connection.http_head = Some(head),
            Some(answer) => {
                // A new connection takes so little at once; and if the peer is gone, nothing is lost.
                let _ = connection.stream.write(answer.as_bytes());
                let _ = connection.stream.shutdown(Shutdown::Write);
                self.hub.close(client);
            }
        }
    }

    /// Sends replies, goes on with paused ranks, and closes those that the store has closed.
    fn serve_touched(&mut self, now: Instant) {
        for client in self.hub.take_touched() {
            let was_paused = self.hub.rank(client).is_some_and(|rank| rank.is_paused);
            // Also for a rank that is gone, of which something is left.
            if let Err(error) = self.hub.resume(client, now) {
                if let Some(connection) = self.connections.get(&client) {
                    self.refuse(connection.peer, &error, now);
                }
                self.close_rank(client);
                continue;
            }
            if was_paused && self.hub.rank(client).is_some_and(|rank| !rank.is_paused) {
                self.ready.insert(client);
            }
            self.flush_rank(client);
        }
        // What was resumed belongs to this turn.
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
        let is_closing = rank.is_closing;
        let read = unsent - rank.down.unsent_bytes();
        self.hub.was_read(client, read);
        match result {
            Err(error) => {
                log::debug!("{}: {error}", connection.peer);
                self.close_rank(client);
            }
            Ok(is_drained) if is_closing => {
                // Its input is discarded until it closes, so that the system sends no reset.
                let now = Instant::now();
                connection.close_at.get_or_insert(now + CLOSING_TIMEOUT);
                if is_drained && !connection.is_shut {
                    connection.is_shut = true;
                    // It fails if the rank is gone.
                    let _ = connection.stream.shutdown(Shutdown::Write);
                    self.ready.insert(client);
                    let peer = connection.peer;
                    let text = format_args!(
                        "the store has closed the connection of {peer}: its log says why"
                    );
                    self.log_about(peer.ip(), &text, now);
                }
            }
            Ok(_) => {}
        }
    }

    fn close_rank(&mut self, client: u32) {
        self.hub.close(client);
        self.connections.remove(&client);
    }

    fn close_late(&mut self, now: Instant) {
        let is_late = |it: &Connection| it.close_at.is_some_and(|at| at <= now);
        let late: Vec<u32> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_late(connection))
            .map(|(client, _)| *client)
            .collect();
        for client in late {
            self.close_rank(client);
        }
    }

    /// Orders a link. The time until the relay gives up runs from here, or from the loss of the last one.
    fn connect(&mut self, now: Instant) {
        let from = *self.lost_at.get_or_insert(now);
        let far = now + Duration::from_secs(365 * 86_400);
        let received = self.has_session.then(|| self.hub.stream().received());
        let refused_timeout = self.refused_timeout;
        self.is_connecting = true;
        self.status.set(if self.has_session {
            Upstream::Lost
        } else {
            Upstream::Connecting
        });
        self.connector.order(Order {
            received,
            give_up_at: from.checked_add(self.resume_timeout).unwrap_or(far),
            refused_timeout,
        });
    }

    fn take_outcomes(&mut self, now: Instant) {
        while let Some(outcome) = self.connector.outcome() {
            self.is_connecting = false;
            let link = match outcome {
                Ok(link) => link,
                Err(error) => {
                    self.fail(error);
                    continue;
                }
            };
            let server = link.server;
            self.store_address = Some(server);
            if self.hub.stream().attach(link.received_by_server).is_err() {
                self.fail(SessionError::Unknown {
                    server: self.target.clone(),
                    is_same_store: true,
                });
                continue;
            }
            let (link, received) = match Link::new(link, self.poll.registry(), LINK) {
                Ok(link) => link,
                Err(error) => {
                    log::warn!("{server}: cannot register the connection: {error}");
                    self.connect(now);
                    continue;
                }
            };
            match self.lost_at.take() {
                Some(at) if self.has_session => log::info!(
                    "connected to the store at {server} again after {:.1} s; nothing is lost",
                    at.elapsed().as_secs_f64()
                ),
                _ => log::info!("connected to the store at {server}"),
            }
            self.has_session = true;
            self.link = Some(link);
            self.is_link_ready = true;
            self.has_link_ended = false;
            self.status.set(Upstream::Connected);
            if let Err(violation) = self.hub.receive_link(&received) {
                self.break_session(violation.to_string());
            }
        }
    }

    /// Whether there may be something to read of the link, and room for it. What a closed link has left is little.
    fn may_read_link(&self) -> bool {
        self.is_link_ready && (self.has_link_ended || !self.hub.is_full())
    }

    fn read_link(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        let hub = &mut self.hub;
        let result = link.read(&mut self.read_buffer, self.has_link_ended, |bytes| {
            hub.receive_link(bytes)
        });
        match result {
            Ok(Ok(LinkState::Idle)) => {}
            Ok(Ok(LinkState::Busy)) => self.is_link_ready = true,
            Ok(Ok(LinkState::Closed)) => self.lose_link("the store has closed it"),
            Ok(Err(violation)) => self.break_session(violation.to_string()),
            Err(error) => self.lose_link(&error.to_string()),
        }
    }

    fn flush_link(&mut self, now: Instant) {
        let Some(link) = &mut self.link else {
            return;
        };
        let stream = self.hub.stream();
        let is_report_due = self.report_at.is_some_and(|at| at <= now);
        let result = link.flush(stream).and_then(|()| {
            if is_report_due {
                link.report(stream)
            } else {
                Ok(())
            }
        });
        self.report_at = match self.report_at {
            _ if !stream.has_unreported() => None,
            Some(at) if at > now => Some(at),
            _ => Some(now + REPORT_DELAY),
        };
        if let Err(error) = result {
            self.lose_link(&error.to_string());
        }
    }

    /// The link is lost. The ranks notice nothing but a pause.
    fn lose_link(&mut self, reason: &str) {
        if self.link.take().is_none() || self.hub.is_ended() {
            return;
        }
        // The job may be over, and the store with it.
        let level = match self.finishing {
            Some(_) => log::Level::Debug,
            None => log::Level::Warn,
        };
        log::log!(
            level,
            "the connection to the store {} is lost ({reason}); trying to go on for {:?}, or {:?} if its machine refuses \
             connections",
            self.target,
            self.resume_timeout,
            self.refused_timeout
        );
        self.report_at = None;
        self.connect(Instant::now());
    }

    /// The store has broken the rules: no link can help.
    fn break_session(&mut self, reason: String) {
        self.link = None;
        self.fail(SessionError::Refused {
            server: self.target.clone(),
            reason,
        });
    }

    /// The session is over, and with it all ranks' connections. The next rank begins another one.
    fn fail(&mut self, error: SessionError) {
        match self.connections.len() {
            0 => log::error!("{error}"),
            count => log::error!("closing the connections of {count} ranks: {error}"),
        }
        self.link = None;
        self.has_session = false;
        self.lost_at = None;
        self.report_at = None;
        self.hub.start_anew();
        self.connections.clear();
        self.ready.clear();
        self.status.set(Upstream::Failed(Arc::new(error)));
    }

    /// Once the ranks are gone, ends the session after all that they have sent.
    fn finish(&mut self, now: Instant) {
        self.finishing = match self.finishing {
            None => self.status.finishes_by().map(|by| (by, false)),
            other => other,
        };
        if let Some((by, false)) = self.finishing
            && self.connections.is_empty()
            && self.accept_more.is_empty()
            && self.hub.end()
        {
            self.finishing = Some((by, true));
            self.flush_link(now);
        }
    }

    /// Whether the relay is to end, and the store has got everything, or there is no time left.
    fn is_finished(&self) -> bool {
        self.finishing.is_some_and(|(by, was_told)| {
            let has_ended = self.hub.is_ended() || !self.has_session && !self.is_connecting;
            by.has_passed(Instant::now()) || was_told && has_ended
        })
    }

    /// Lets the store forget the session at once, if it can be told.
    fn say_goodbye(&mut self) {
        self.connections.clear();
        if let Some(link) = &mut self.link {
            let stream = self.hub.stream();
            stream.push_end();
            if let Err(error) = link.flush(stream) {
                log::debug!("the store was not told of the end of the relay: {error}");
            }
        }
    }
}

fn is_readable(event: &Event) -> bool {
    event.is_readable() || has_ended(event)
}

fn has_ended(event: &Event) -> bool {
    event.is_read_closed() || event.is_error()
}
