//! Waits for all sockets of an agent at once, and has the ready ones read, written and accepted.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use super::acceptor::{AcceptOptions, Acceptor};
use super::driver::{Driver, Served};
use super::peers::PeerEntry;
use super::reader::{self, ReadBuffers, ReadEnd};
use super::sockets::{Owner, Sockets, WAKER};
use crate::peer::{ConnectionId, Effects, Reads};
use crate::segmented_queue::SegmentedQueue;

const EVENTS_MAX: usize = 256;

/// One thread of the pool has it at a time.
pub(crate) struct Poller {
    driver: Arc<Driver>,
    poll: Poll,
    events: Events,
    /// `None` once the agent ends.
    acceptor: Option<Acceptor>,
    buffers: ReadBuffers,
    /// Connections with more bytes to read at once.
    more: VecDeque<(Arc<PeerEntry>, ConnectionId)>,
}

impl Poller {
    /// The system's poller, and the handle for other threads.
    pub(crate) fn open() -> io::Result<(Poll, Sockets)> {
        let poll = Poll::new()?;
        let sockets = Sockets::new(poll.registry().try_clone()?)?;
        Ok((poll, sockets))
    }

    /// `poll` must be the poller that the driver's sockets were opened with.
    pub(crate) fn new(
        driver: &Arc<Driver>,
        poll: Poll,
        listeners: Vec<TcpListener>,
        options: AcceptOptions,
    ) -> io::Result<Self> {
        let acceptor = Acceptor::new(driver, listeners, options, Instant::now())?;
        Ok(Self {
            driver: Arc::clone(driver),
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            acceptor: Some(acceptor),
            buffers: ReadBuffers::default(),
            more: VecDeque::new(),
        })
    }

    /// Closes the listeners, and the connections whose handshake is not complete.
    pub(super) fn close_listeners(&mut self) {
        self.acceptor = None;
    }

    /// Waits for the sockets and the earliest deadline, once, and handles what is ready. Requests that may run go to
    /// `admitted`.
    pub(crate) fn poll(&mut self, admitted: &mut SegmentedQueue<Served>) {
        let driver = Arc::clone(&self.driver);
        let call_ms = driver.sockets.begin_wait();
        let now = Instant::now();
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.rules.next_turn(now);
        }
        let timeout = self.timeout(call_ms, now);
        let polled = self.poll.poll(&mut self.events, timeout);
        driver.sockets.end_wait();
        if let Err(error) = polled
            && error.kind() != io::ErrorKind::Interrupted
        {
            log::error!("{}: cannot poll: {error}", driver.me());
            // Not to spin: what fails now will fail again.
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut handshakes = Vec::new();
        let earlier = std::mem::take(&mut self.more);
        for event in &self.events {
            if event.token() == WAKER {
                continue;
            }
            match driver.sockets.owner(event.token().0) {
                Some(Owner::Peer(peer)) => {
                    let more = on_event(&driver, &peer, event, &mut self.buffers, admitted);
                    self.more.extend(more.map(|connection| (peer, connection)));
                }
                Some(Owner::Handshake) => handshakes.push(event.token().0),
                // A listener's, or of a connection that was closed while its event was on its way.
                None => {
                    if let Some(acceptor) = &mut self.acceptor {
                        acceptor.rules.on_event(event.token().0);
                    }
                }
            }
        }
        // Connections that had more bytes last time follow after the other connections.
        for (peer, connection) in earlier {
            let (reads, buffers) = (Reads::ForPoller, &mut self.buffers);
            let end = reader::read(&driver, &peer, connection, reads, buffers, admitted);
            if end == ReadEnd::More {
                self.more.push_back((peer, connection));
            }
        }
        let now = if let Some(acceptor) = &mut self.acceptor {
            for token in handshakes {
                acceptor.readable(token, admitted);
            }
            let now = Instant::now();
            acceptor.accept(now, admitted);
            acceptor.expire(now);
            now
        } else {
            Instant::now()
        };
        driver.expire_all(now);
    }

    fn timeout(&self, call_ms: Option<u64>, now: Instant) -> Option<Duration> {
        let acceptor = self.acceptor.as_ref();
        if !self.more.is_empty() || acceptor.is_some_and(|acceptor| acceptor.rules.has_ready()) {
            return Some(Duration::ZERO);
        }
        let call = call_ms.and_then(|ms| self.driver.clock.at_ms(ms).instant());
        [call, acceptor.and_then(Acceptor::next_deadline)]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.saturating_duration_since(now))
    }
}

/// Has a peer's connection written and read. Returns it when there is more to read.
fn on_event(
    driver: &Driver,
    peer: &Arc<PeerEntry>,
    event: &mio::event::Event,
    buffers: &mut ReadBuffers,
    admitted: &mut SegmentedQueue<Served>,
) -> Option<ConnectionId> {
    let connection = {
        let mut state = peer.lock();
        let (connection, socket) = state.core.connection()?;
        if socket.token != event.token().0 {
            // An event of an earlier connection.
            return None;
        }
        if event.is_read_closed() || event.is_error() {
            state.core.connected_by(connection)?.is_read_closed = true;
        }
        connection
    };
    if event.is_writable() || event.is_error() {
        let effects = &mut Effects::new();
        driver.step_with(peer, effects, admitted, |core| core.writable(connection));
    }
    if !(event.is_readable() || event.is_read_closed() || event.is_error()) {
        return None;
    }
    let reads = Reads::ForPoller;
    let end = reader::read(driver, peer, connection, reads, buffers, admitted);
    (end == ReadEnd::More).then_some(connection)
}
