//! The sockets of an agent as all threads may use them while one thread polls.

use std::io;
use std::net;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Interest, Token, Waker};
use slab::Slab;

use super::peers::PeerEntry;
use super::socket::Socket;
use super::tls::Tls;
use crate::peer::Watch;
use crate::sync::Lock;

pub(super) const WAKER: Token = Token(usize::MAX);

/// The most unsent bytes of a connection in the system: bytes handed to it cannot be overtaken.
const NOT_SENT_LOW_WATER_BYTES: u32 = 1 << 20;

/// No deadline at all.
const NEVER: u64 = u64::MAX;

/// Registers sockets with the poller, and wakes it.
pub(crate) struct Sockets {
    registry: mio::Registry,
    waker: Waker,
    owners: Lock<Slab<Owner>>,
    /// The time when the earliest call expires, in milliseconds of the agent's clock, or an earlier time.
    next_deadline_ms: AtomicU64,
    /// The poller waits, for that deadline at most.
    is_waiting: AtomicBool,
}

/// The object that a token identifies.
#[derive(Debug, Clone)]
pub(super) enum Owner {
    /// An accepted connection that has not completed the handshake.
    Handshake,
    Peer(Arc<PeerEntry>),
}

impl Sockets {
    pub(super) fn new(registry: mio::Registry) -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new(&registry, WAKER)?,
            registry,
            owners: Lock::default(),
            next_deadline_ms: AtomicU64::new(NEVER),
            is_waiting: AtomicBool::new(false),
        })
    }

    /// Registers a listener under this token, which is not a token of a connection.
    pub(super) fn listen(
        &self,
        listener: net::TcpListener,
        token: usize,
    ) -> io::Result<TcpListener> {
        let mut listener = TcpListener::from_std(listener);
        self.registry
            .register(&mut listener, Token(token), Interest::READABLE)?;
        Ok(listener)
    }

    /// Ends a wait of the poller.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            log::error!("cannot wake the poller: {error}");
        }
    }

    /// A call expires at this time, if at all: the poller will not sleep beyond.
    pub(super) fn expect_at(&self, deadline_ms: Option<u64>) {
        let Some(deadline_ms) = deadline_ms else {
            return;
        };
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

    /// Records that the poller is about to wait, and its deadline.
    pub(super) fn begin_wait(&self) -> Option<u64> {
        self.is_waiting.store(true, Ordering::SeqCst);
        let deadline_ms = self.next_deadline_ms.load(Ordering::SeqCst);
        (deadline_ms != NEVER).then_some(deadline_ms)
    }

    pub(super) fn end_wait(&self) {
        self.is_waiting.store(false, Ordering::SeqCst);
    }

    /// Whether the earliest deadline has passed. If so it is forgotten: the caller finds the next one, and calls that
    /// begin in the meantime report their deadlines.
    pub(super) fn take_due(&self, now_ms: u64) -> bool {
        let is_due = now_ms >= self.next_deadline_ms.load(Ordering::SeqCst);
        if is_due {
            self.next_deadline_ms.store(NEVER, Ordering::SeqCst);
        }
        is_due
    }

    /// Gives a token to a connection.
    pub(super) fn adopt(
        &self,
        stream: TcpStream,
        tls: Option<Tls>,
        owner: Owner,
    ) -> io::Result<Arc<Socket>> {
        let address = stream.peer_addr()?;
        let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(NOT_SENT_LOW_WATER_BYTES);
        let token = self.owners.lock().insert(owner);
        Ok(Arc::new(Socket {
            token,
            stream,
            address,
            tls,
        }))
    }

    /// The connection is this peer's from now on.
    pub(super) fn give_to(&self, socket: &Socket, peer: &Arc<PeerEntry>) {
        if let Some(owner) = self.owners.lock().get_mut(socket.token) {
            *owner = Owner::Peer(Arc::clone(peer));
        }
    }

    /// Changes what the poller watches a socket for.
    pub(super) fn watch(&self, socket: &Socket, before: Watch, after: Watch) -> io::Result<()> {
        let fd = socket.stream.as_raw_fd();
        let mut source = SourceFd(&fd);
        let token = Token(socket.token);
        match (interest(before), interest(after)) {
            (None, Some(after)) => self.registry.register(&mut source, token, after),
            (Some(_), Some(after)) => self.registry.reregister(&mut source, token, after),
            (Some(_), None) => self.registry.deregister(&mut source),
            (None, None) => Ok(()),
        }
    }

    /// Closes a connection for both sides, and for a thread that waits for it.
    pub(super) fn release(&self, socket: &Socket, watched: Watch) {
        if let Err(error) = self.watch(socket, watched, Watch::default()) {
            log::debug!("cannot deregister a connection that ends: {error}");
        }
        let _ = socket.stream.shutdown(net::Shutdown::Both);
        self.owners.lock().try_remove(socket.token);
    }

    pub(super) fn owner(&self, token: usize) -> Option<Owner> {
        self.owners.lock().get(token).cloned()
    }
}

fn interest(watch: Watch) -> Option<Interest> {
    match (watch.readable, watch.writable) {
        (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
        (true, false) => Some(Interest::READABLE),
        (false, true) => Some(Interest::WRITABLE),
        (false, false) => None,
    }
}
