//! Accepts connections as an [`Acceptor`] decides. A spare descriptor is in reserve for the time when the process has
//! no other left.

use std::fs::File;
use std::io;
use std::net::{self, SocketAddr};
use std::time::Instant;

use crate::acceptor::{AcceptLimits, Acceptor, Decision, Refusal, Stage};

/// The next step of an event loop with new connections, see [`Listeners::next`].
#[derive(Debug)]
pub enum Step<K, S> {
    /// Handle the data that has arrived from this connection: it may complete the handshake.
    Read(K),
    /// Close this connection, for the reason [`Refusal::MakesRoom`].
    Close(K),
    /// Serve this connection, and pass its key to [`Acceptor::admitted`].
    Admit(S, SocketAddr),
    /// A connection of this peer was closed at once. If the process has no descriptor left, only the first such
    /// connection is reported.
    Refused(SocketAddr, Refusal),
    /// A listener failed, and is tried again at [`Acceptor::next_deadline`]: log the error.
    Failed(io::Error),
    /// There is nothing to do until the next turn.
    Wait,
}

/// The listeners of an event loop, which accept sockets of type `S`.
#[derive(Debug)]
pub struct Listeners<L, S> {
    listeners: Vec<L>,
    accept: fn(&L) -> io::Result<(S, SocketAddr)>,
    spare: SpareDescriptor,
    /// The connection that was accepted last, until it is decided on.
    accepted: Option<(S, SocketAddr)>,
}

impl<L, S> Listeners<L, S> {
    /// Makes the listeners non-blocking, and has `register` register each with a poller under the given token, which
    /// is at most `usize::MAX - 2`. Other sources of events must use tokens below or above the listeners' tokens.
    /// `accept` accepts one non-blocking socket.
    ///
    /// # Errors
    /// The system's error, and errors of `register`.
    pub fn new(
        listeners: Vec<net::TcpListener>,
        mut register: impl FnMut(net::TcpListener, usize) -> io::Result<L>,
        accept: fn(&L) -> io::Result<(S, SocketAddr)>,
    ) -> io::Result<Self> {
        let listeners = listeners.into_iter().enumerate();
        let listeners = listeners.map(|(index, listener)| {
            listener.set_nonblocking(true)?;
            register(listener, Acceptor::<()>::listener_token(index))
        });
        Ok(Self {
            listeners: listeners.collect::<io::Result<_>>()?,
            accept,
            spare: SpareDescriptor::new(),
            accepted: None,
        })
    }

    /// Creates the acceptor for these listeners. `K` names a connection.
    #[must_use]
    pub fn acceptor<K: Copy>(&self, limits: AcceptLimits, now: Instant) -> Acceptor<K> {
        Acceptor::new(self.listeners.len(), limits, self.spare.is_open(), now)
    }

    /// Accepts connections, and returns the next step. `open` is the number of open connections, `stage` returns the
    /// stage of a connection.
    pub fn next<K: Copy>(
        &mut self,
        acceptor: &mut Acceptor<K>,
        open: usize,
        stage: impl Fn(K) -> Stage,
    ) -> Step<K, S> {
        loop {
            match acceptor.next(open, &stage) {
                Decision::Accept {
                    listener,
                    with_spare,
                } => {
                    if with_spare {
                        self.spare.close();
                    }
                    let result = (self.accept)(&self.listeners[listener]);
                    acceptor.on_accept(result.map(|accepted| self.accepted = Some(accepted)));
                }
                Decision::OpenSpare => acceptor.on_spare(self.spare.open()),
                Decision::Admit => {
                    if let Some((socket, peer)) = self.accepted.take() {
                        return Step::Admit(socket, peer);
                    }
                }
                Decision::Refuse(reason) => {
                    if let (Some((_, peer)), Some(reason)) = (self.accepted.take(), reason) {
                        return Step::Refused(peer, reason);
                    }
                }
                Decision::Read(key) => return Step::Read(key),
                Decision::Close(key) => return Step::Close(key),
                Decision::Fail(error) => return Step::Failed(error),
                Decision::Wait => return Step::Wait,
            }
        }
    }

    /// Runs `task`, which needs one descriptor for as long as it runs.
    pub fn with_descriptor<T>(&mut self, task: impl FnOnce() -> T) -> T {
        self.spare.lend(task)
    }
}

/// A descriptor that is closed for a moment when the process has none left, so that queued peers can be accepted and
/// refused instead of hanging.
#[derive(Debug)]
pub(crate) struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    /// Opens one, if the process has one left.
    pub(crate) fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Gives the descriptor back to the process.
    pub(crate) fn close(&mut self) {
        self.0 = None;
    }

    /// Opens it again, if the process has one left. Returns whether it is open.
    pub(crate) fn open(&mut self) -> bool {
        if self.0.is_none() {
            *self = Self::new();
        }
        self.is_open()
    }

    /// Whether there is one.
    pub(crate) const fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `task`, which needs one descriptor for as long as it runs.
    pub(crate) fn lend<T>(&mut self, task: impl FnOnce() -> T) -> T {
        self.close();
        let result = task();
        self.open();
        result
    }
}
