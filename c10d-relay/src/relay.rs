//! The handle of a running relay.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use c10d_socket::{
    Cancel, CredentialsError, Deadline, ProcessBound, adopt_listener, check_own_user,
};
use c10d_store::unstable::SessionDialer;
use c10d_store::{SessionError, StoreAddress};
use mio::{Poll, Waker};

use crate::connector::Connector;
use crate::event_loop::{EventLoop, Parts, waker_of};
use crate::hub::Hub;
use crate::options::RelayOptions;
use crate::status::{Status, Upstream};

/// A running relay: the connection of all ranks of a node to a store.
///
/// The ranks of a node connect to it on loopback, like to an ordinary TCPStore, and it holds one connection to the
/// store for all of them. It serves only processes of the user that runs it. When the connection to the store breaks,
/// it connects again and continues: each request takes effect exactly once, and ranks only notice a pause. It also
/// continues when the store was restarted with its journal (`ServerOptions::with_journal`). If the store cannot be
/// reached for [`RelayOptions::resume_timeout`], refuses connections for [`RelayOptions::refused_timeout`] (unless
/// its address is looked up), or was restarted without a journal, the relay closes the connections of its ranks and
/// logs why; the next rank that connects begins another session.
///
/// Connections of HTTP clients, for example `c10d why` or a browser, are forwarded to the store's port. While the store cannot
/// be reached, the answer is 503 with the reason. The relay forwards 32 of them at a time, and closes a connection without
/// progress for 15 s.
///
/// A relay belongs to the process that started it. In a forked child it is a stopped relay: using or dropping it
/// there has no effect on the parent.
///
/// It has two threads, `c10d-relay` and `c10d-relay-dial`, which [`shutdown`](Self::shutdown) and `Drop` stop.
///
/// ```
/// use std::net::TcpListener;
///
/// use c10d_relay::{HostPort, Relay, RelayOptions};
/// use c10d_store::{ServerOptions, TcpStoreServer};
///
/// let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
/// let store = HostPort::new("127.0.0.1", server.local_addr().port());
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let relay = Relay::start(store, vec![listener], RelayOptions::default())?;
/// println!("ranks of this node connect to {}", relay.local_addrs()[0]);
/// relay.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Relay {
    target: StoreAddress,
    local_addrs: Vec<SocketAddr>,
    running: ProcessBound<Running>,
}

/// The relay's thread, and the state that both share.
#[derive(Debug)]
struct Running {
    status: Arc<Status>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Serves the store at `upstream` on these bound sockets, and follows the leader if `upstream` is looked up. The
    /// sockets should have loopback addresses, because other connections are not served. Connects in the background,
    /// and so does not block.
    ///
    /// # Errors
    /// [`RelayError::System`] if a socket cannot listen, the system has no thread or descriptor left, or
    /// [`c10d_socket::check_own_user`] fails; [`RelayError::Credentials`] if the credentials cannot be used.
    pub fn start(
        upstream: impl Into<StoreAddress>,
        listeners: Vec<TcpListener>,
        options: RelayOptions,
    ) -> Result<Self, RelayError> {
        let listeners = listeners
            .into_iter()
            .map(|listener| adopt_listener(listener.into(), 0))
            .collect::<Result<Vec<_>, _>>()
            .map_err(io::Error::other)?;
        let local_addrs = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<Result<Vec<_>, _>>()?;
        check_own_user()?;
        let upstream = upstream.into();
        let poll = Poll::new()?;
        let waker = waker_of(&poll)?;
        let dialer = SessionDialer::new(
            upstream.clone(),
            options.connect_options.clone(),
            options.credentials.as_ref(),
            options.resume_timeout(),
        )?
        .expecting_sessions()
        .carrying_over()
        .taking_pieces();
        let status = Arc::new(Status::default());
        let event_loop = EventLoop::new(Parts {
            poll,
            listeners,
            hub: Hub::new(options.limits),
            connector: Connector::start(dialer, Arc::clone(&waker))?,
            target: upstream.clone(),
            options,
            status: Arc::clone(&status),
        })?;
        let thread = thread::Builder::new()
            .name("c10d-relay".to_owned())
            .spawn(move || event_loop.run())?;
        Ok(Self {
            target: upstream,
            local_addrs,
            running: ProcessBound::new(Running {
                status,
                waker,
                thread: Some(thread),
            }),
        })
    }

    /// Blocks until the relay has a session with the store, at most until the deadline or until `cancel` interrupts
    /// it.
    ///
    /// # Errors
    /// [`RelayError::Session`] if that is impossible or has failed, [`RelayError::Timeout`] if the store has not been
    /// reached in time, [`RelayError::Stopped`] if the relay has stopped, and [`RelayError::Cancelled`].
    pub fn wait_until_connected(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<(), RelayError> {
        let Some(running) = self.running() else {
            return Err(RelayError::Stopped);
        };
        match running.status.settled(deadline, cancel) {
            None => Err(RelayError::Cancelled),
            Some(Upstream::Connected) => Ok(()),
            Some(Upstream::Failed(source)) => Err(RelayError::Session { source }),
            Some(Upstream::Stopped) => Err(RelayError::Stopped),
            Some(Upstream::Connecting | Upstream::Lost) => Err(RelayError::Timeout {
                target: self.target.clone(),
            }),
        }
    }

    /// Returns the address of the store, as passed to [`start`](Self::start).
    #[must_use]
    pub const fn upstream(&self) -> &StoreAddress {
        &self.target
    }

    /// Returns the addresses that the relay listens on.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Returns whether the relay is connected to the store at the moment.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.running()
            .is_some_and(|running| matches!(running.status.get(), Upstream::Connected))
    }

    /// Returns whether the relay's thread is running. It runs until the relay is dropped, unless a system call
    /// failed, which is logged.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let thread = self.running().and_then(|running| running.thread.as_ref());
        thread.is_some_and(|thread| !thread.is_finished())
    }

    /// Returns the number of connections of ranks.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        let running = self.running();
        running.map_or(0, |running| running.status.connections())
    }

    /// Closes all connections, informs the store, and stops the threads. Does not wait for a store that does not answer.
    pub fn shutdown(self) {
        drop(self);
    }

    /// Like [`shutdown`](Self::shutdown), but stops only when the ranks have closed their connections and the store
    /// has carried out all their requests, when a store without a journal has exited, or at the deadline, because PyTorch's
    /// clients do not wait for an answer to SET. Blocks for that time.
    pub fn finish(self, deadline: Deadline) {
        if let Some(running) = self.running.into_inner() {
            running.finish(deadline);
        }
    }

    /// `None` in a forked child.
    fn running(&self) -> Option<&Running> {
        self.running.get().ok()
    }
}

impl Running {
    fn finish(mut self, deadline: Deadline) {
        self.status.finish_by(deadline);
        if let Err(error) = self.waker.wake() {
            log::error!("cannot stop the relay: {error}");
            return;
        }
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of the relay panicked");
        }
    }

    fn end(&mut self) {
        if self.thread.is_none() {
            return;
        }
        self.status.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            // The thread cannot be woken, so joining it would hang.
            self.thread = None;
            log::error!("cannot stop the relay: {error}");
        }
        self.join();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// The error of a relay that cannot start, or has no session.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The system has no thread, descriptor or memory left, or a socket cannot be used.
    #[error("cannot start the relay: {source}")]
    System {
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The credentials cannot be used.
    #[error(transparent)]
    Credentials(Arc<CredentialsError>),
    /// The session with the store could not begin, or has failed.
    #[error("the relay has no session with the store: {source}")]
    Session {
        /// The error of the session.
        source: Arc<SessionError>,
    },
    /// The store has not been reached in time; the relay keeps trying.
    #[error("the relay has not reached the store {target} in time")]
    Timeout {
        /// The address of the store.
        target: StoreAddress,
    },
    /// The wait was cancelled; the relay keeps trying.
    #[error("cancelled before the relay has reached the store")]
    Cancelled,
    /// The relay has stopped.
    #[error("the relay has stopped")]
    Stopped,
}

impl From<io::Error> for RelayError {
    fn from(source: io::Error) -> Self {
        Self::System {
            source: Arc::new(source),
        }
    }
}

impl From<CredentialsError> for RelayError {
    fn from(error: CredentialsError) -> Self {
        Self::Credentials(Arc::new(error))
    }
}
