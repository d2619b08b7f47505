//! The sockets of an agent under one poller, which one thread of the pool has at a time.
//!
//! Waits, and says whose socket is ready; what is read and written then is [`super::link`]'s.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;

use super::accept::Handshake;
use super::link::ReadEnd;
use super::peer::{Established, Link, Peer, Request};
use super::shared::Shared;

const WAKER: Token = Token(usize::MAX);
const EVENTS_MAX: usize = 256;

/// No deadline at all.
const NEVER: u64 = u64::MAX;

/// What all threads may do to the poller while one of them polls.
pub(crate) struct Sockets {
    registry: mio::Registry,
    waker: Waker,
    owners: Mutex<Slab<Owner>>,
    /// The earliest deadline of a call, in milliseconds since the agent's start, or an earlier time.
    next_deadline_ms: AtomicU64,
    /// The poller waits, for that deadline at most.
    is_waiting: AtomicBool,
}

/// Whose a socket is.
#[derive(Debug, Clone)]
enum Owner {
    Listener,
    /// Of a worker that has not said yet which it is.
    Handshake,
    Peer(Arc<Peer>),
}

/// The poller itself, and what only who has it touches.
pub(crate) struct Poller {
    poll: Poll,
    events: Events,
    listeners: HashMap<usize, TcpListener>,
    pub(crate) handshakes: HashMap<usize, Handshake>,
    /// Connections of which more can be read at once.
    more: VecDeque<(usize, Arc<Peer>)>,
    /// Accepting failed, and is tried again then.
    pub(crate) accept_again_at: Option<Instant>,
}

impl Sockets {
    /// A poller for these listeners, which must be non-blocking.
    pub(crate) fn new(listeners: Vec<TcpListener>) -> io::Result<(Self, Poller)> {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let mut owners = Slab::new();
        let mut by_token = HashMap::new();
        for listener in listeners {
            let token = owners.insert(Owner::Listener);
            registry.register(
                &mut SourceFd(&listener.as_raw_fd()),
                Token(token),
                Interest::READABLE,
            )?;
            by_token.insert(token, listener);
        }
        let sockets = Self {
            waker: Waker::new(&registry, WAKER)?,
            registry,
            owners: Mutex::new(owners),
            next_deadline_ms: AtomicU64::new(NEVER),
            is_waiting: AtomicBool::new(false),
        };
        let poller = Poller {
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            listeners: by_token,
            handshakes: HashMap::new(),
            more: VecDeque::new(),
            accept_again_at: None,
        };
        Ok((sockets, poller))
    }

    /// Ends a wait of the poller.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            log::error!("cannot wake the poller: {error}");
        }
    }

    /// A call's deadline is at this time, in milliseconds since the agent's start: the poller will not
    /// sleep beyond.
    pub(crate) fn expect_at(&self, deadline_ms: u64) {
        if deadline_ms >= self.next_deadline_ms.load(Ordering::SeqCst) {
            return;
        }
        let before = self
            .next_deadline_ms
            .fetch_min(deadline_ms, Ordering::SeqCst);
        if deadline_ms < before && self.is_waiting.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// A token for a connection that was accepted, or for one that was dialed by this agent.
    pub(crate) fn adopt(
        &self,
        socket: TcpStream,
        peer: Option<&Arc<Peer>>,
    ) -> io::Result<Arc<Link>> {
        let address = socket.peer_addr()?;
        let owner = match peer {
            Some(peer) => Owner::Peer(Arc::clone(peer)),
            None => Owner::Handshake,
        };
        let token = self.lock_owners().insert(owner);
        Ok(Arc::new(Link {
            token,
            socket,
            address,
        }))
    }

    /// The connection is this peer's from now on.
    pub(crate) fn give_to(&self, link: &Link, peer: &Arc<Peer>) {
        if let Some(owner) = self.lock_owners().get_mut(link.token) {
            *owner = Owner::Peer(Arc::clone(peer));
        }
    }

    /// Changes what is wanted to be known of a connection.
    pub(crate) fn change(
        &self,
        link: &Link,
        from: Option<Interest>,
        to: Option<Interest>,
    ) -> io::Result<()> {
        let fd = link.socket.as_raw_fd();
        let mut source = SourceFd(&fd);
        match (from, to) {
            (None, Some(to)) => self.registry.register(&mut source, Token(link.token), to),
            (Some(_), Some(to)) => self.registry.reregister(&mut source, Token(link.token), to),
            (Some(_), None) => self.registry.deregister(&mut source),
            (None, None) => Ok(()),
        }
    }

    /// Ends a connection for both sides, also for who waits for it.
    pub(crate) fn close(&self, established: &Established) {
        self.release(&established.link, established.interest);
    }

    pub(crate) fn release(&self, link: &Link, interest: Option<Interest>) {
        if let Err(error) = self.change(link, interest, None) {
            log::debug!("cannot unwatch a connection that ends: {error}");
        }
        let _ = link.socket.shutdown(std::net::Shutdown::Both);
        self.lock_owners().try_remove(link.token);
    }

    fn owner(&self, token: usize) -> Option<Owner> {
        self.lock_owners().get(token).cloned()
    }

    fn lock_owners(&self) -> MutexGuard<'_, Slab<Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Waits for the sockets and the earliest deadline, and does what there is to do.
    pub(crate) fn poll_once(self: &Arc<Self>, poller: &mut Poller, found: &mut VecDeque<Request>) {
        let now = Instant::now();
        self.sockets.is_waiting.store(true, Ordering::SeqCst);
        let timeout = self.time_to_wait(poller, now);
        let polled = poller.poll.poll(&mut poller.events, timeout);
        self.sockets.is_waiting.store(false, Ordering::SeqCst);
        if let Err(error) = polled
            && error.kind() != io::ErrorKind::Interrupted
        {
            log::error!("{}: cannot poll: {error}", self.me);
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut more = std::mem::take(&mut poller.more);
        let mut listeners = Vec::new();
        let mut shaking = Vec::new();
        for event in &poller.events {
            if event.token() == WAKER {
                continue;
            }
            let token = event.token().0;
            match self.sockets.owner(token) {
                Some(Owner::Peer(peer)) => {
                    if event.is_writable() || event.is_error() {
                        self.on_writable(&peer, token);
                    }
                    if event.is_read_closed() || event.is_error() {
                        self.on_read_closed(&peer, token);
                    }
                    if (event.is_readable() || event.is_read_closed() || event.is_error())
                        && self.read_peer(&peer, token, found) == ReadEnd::More
                    {
                        more.push_back((token, peer));
                    }
                }
                Some(Owner::Handshake) => shaking.push(token),
                Some(Owner::Listener) => listeners.push(token),
                // Closed while its event was on its way.
                None => {}
            }
        }
        // Those that had more last time get their turn, and keep their place.
        for (token, peer) in more {
            if self.read_peer(&peer, token, found) == ReadEnd::More {
                poller.more.push_back((token, peer));
            }
        }
        for token in shaking {
            self.go_on_shaking(poller, token, found);
        }
        if !listeners.is_empty() || poller.accept_again_at.is_some() {
            self.accept_all(poller);
        }
        let now = Instant::now();
        self.expire_handshakes(poller, now);
        if self.ms_of(now) >= self.sockets.next_deadline_ms.load(Ordering::SeqCst) {
            // Calls that begin meanwhile lower it themselves.
            self.sockets.next_deadline_ms.store(NEVER, Ordering::SeqCst);
            if let Some(next) = self.expire(now) {
                self.sockets
                    .next_deadline_ms
                    .fetch_min(next, Ordering::SeqCst);
            }
        }
    }

    fn time_to_wait(&self, poller: &Poller, now: Instant) -> Option<Duration> {
        if !poller.more.is_empty() {
            return Some(Duration::ZERO);
        }
        let deadline_ms = self.sockets.next_deadline_ms.load(Ordering::SeqCst);
        let call = (deadline_ms != NEVER)
            .then(|| self.at_ms(deadline_ms).instant())
            .flatten();
        let handshake = poller
            .handshakes
            .values()
            .map(|handshake| handshake.until)
            .min();
        [call, handshake, poller.accept_again_at]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.saturating_duration_since(now))
    }

    fn accept_all(self: &Arc<Self>, poller: &mut Poller) {
        poller.accept_again_at = None;
        let Poller {
            listeners,
            handshakes,
            accept_again_at,
            ..
        } = poller;
        for listener in listeners.values() {
            loop {
                match listener.accept() {
                    Ok((socket, _)) => self.begin_shaking(handshakes, socket),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error)
                        if matches!(
                            error.kind(),
                            io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                        ) => {}
                    Err(error) => {
                        log::warn!("{}: cannot accept a connection: {error}", self.me);
                        *accept_again_at = Some(Instant::now() + Duration::from_millis(100));
                        break;
                    }
                }
            }
        }
    }
}
