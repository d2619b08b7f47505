//! The TCPStore server: one thread with an event loop and a store.

#[cfg(not(feature = "extensions"))]
mod absent;
mod budget;
mod connection;
mod counts;
mod delayed_replies;
mod event_loop;
#[cfg(feature = "extensions")]
mod extensions;
#[cfg(feature = "extensions")]
mod http;
#[cfg(feature = "extensions")]
mod journal_queue;
mod memory_limit;
#[cfg(feature = "extensions")]
mod observer;
mod options;
#[cfg(feature = "extensions")]
mod recover;
#[cfg(feature = "extensions")]
mod session_client;
#[cfg(feature = "extensions")]
mod session_replies;
#[cfg(feature = "extensions")]
mod session_requests;
#[cfg(feature = "extensions")]
mod sessions;
mod timers;
mod turn;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use c10d_socket::{
    ListenOptions, ProcessBound, Protocol, TlsServer, adopt_listener, check_own_user, listen,
};

use crate::error::StoreError;
#[cfg(feature = "extensions")]
use crate::journal::JournalError;
#[cfg(not(feature = "extensions"))]
use absent::{
    self as extensions, self as recover, self as session_client, self as session_requests,
};
use counts::Counts;
use event_loop::EventLoop;
pub use memory_limit::recommended_memory_max;
pub use options::ServerOptions;
use recover::ServedJournal;
#[cfg(feature = "extensions")]
pub use {
    http::{HttpConnection, HttpHandler},
    observer::{SnapshotError, StoreObserver},
};

/// A running TCPStore server, for PyTorch's clients and this crate's.
///
/// It has one thread, `c10d-store`, which [`shutdown`](Self::shutdown) and `Drop` stop. They close all
/// connections, so that waiting clients get an error instead of hanging.
///
/// A server belongs to the process that started it. In a forked child it is a stopped server without connections:
/// using or dropping it there has no effect on the parent.
///
/// PyTorch's protocol has no authentication and no encryption: anyone who reaches the port can read and write
/// everything. Listen on an address of the cluster's own network, or give the server a secret (feature `tls`,
/// `ServerOptions::with_secret`): then only this crate's clients with the same secret are served.
///
/// The behaviour follows PyTorch's libuv server (`torch/csrc/distributed/c10d/
/// TCPStoreLibUvBackend.cpp`) byte for byte, without its weaknesses: see docs/spec/wire.md.
///
/// ```
/// use c10d_store::{ServerOptions, TcpStoreServer};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
/// println!("listening on {}", server.local_addr());
/// server.shutdown();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TcpStoreServer {
    local_addrs: Vec<SocketAddr>,
    running: ProcessBound<Running>,
}

/// The server's thread and its shared state.
#[derive(Debug)]
struct Running {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    #[cfg(feature = "extensions")]
    observer: StoreObserver,
    waker: Arc<mio::Waker>,
    thread: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Listens on an address and serves it. For port 0 the system chooses a port. Does not block for a
    /// literal address; a name is looked up without a time limit, so use [`c10d_socket::listen`] and
    /// [`serve`](Self::serve) for a name, and for all interfaces.
    ///
    /// # Errors
    /// [`StoreError::Listen`] if listening on the address fails, [`StoreError::Server`] if the name has
    /// no address or the system has no thread or descriptor left.
    pub fn bind(address: impl ToSocketAddrs, options: ServerOptions) -> Result<Self, StoreError> {
        let addresses = address.to_socket_addrs().map_err(server_error)?;
        let mut result = Err(server_error(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no address to listen on",
        )));
        for address in addresses {
            let listen_options = ListenOptions::default()
                .with_host(address.ip().to_string())
                .with_port(address.port());
            result = listen(&listen_options).map_err(StoreError::from);
            if result.is_ok() {
                break;
            }
        }
        Self::serve(result?, options)
    }

    /// Serves one store on bound sockets, which are set up like by [`c10d_socket::adopt_listener`]. Does not block,
    /// except to read a journal: 1,000,000 keys take about a second.
    ///
    /// # Errors
    /// [`StoreError::Journal`] if the journal cannot be read, [`StoreError::Listen`] if a socket cannot listen,
    /// [`StoreError::Server`] if there is no socket, the system has no thread or descriptor left, or
    /// [`c10d_socket::check_own_user`] fails and plain connections of that user are to be served,
    /// [`StoreError::Credentials`] if the credentials cannot be used.
    pub fn serve(listeners: Vec<TcpListener>, options: ServerOptions) -> Result<Self, StoreError> {
        let journal = ServedJournal::open(&options)?;
        Self::serve_with(journal, listeners, options)
    }

    fn serve_with(
        journal: ServedJournal,
        listeners: Vec<TcpListener>,
        options: ServerOptions,
    ) -> Result<Self, StoreError> {
        let listeners = listeners
            .into_iter()
            .map(|listener| adopt_listener(listener.into(), 0))
            .collect::<Result<Vec<_>, _>>()?;
        let credentials = options.credentials.as_ref();
        if credentials.is_some() && options.plain_from_same_user {
            check_own_user().map_err(server_error)?;
        }
        let tls = credentials.map(|credentials| credentials.server(Protocol::Store));
        let tls = tls.transpose()?;
        Self::start(listeners, options, tls, journal).map_err(server_error)
    }

    fn start(
        listeners: Vec<TcpListener>,
        options: ServerOptions,
        tls: Option<TlsServer>,
        journal: ServedJournal,
    ) -> io::Result<Self> {
        let local_addrs = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<Vec<_>>>()?;
        if local_addrs.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a server needs a socket to listen on",
            ));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Counts::default());
        let memory_max = options.memory_max().unwrap_or(0);
        counts.memory_max.store(memory_max, Ordering::Release);
        let (event_loop, waker) = EventLoop::new(
            listeners,
            options,
            tls,
            Arc::clone(&stop),
            Arc::clone(&counts),
            journal,
        )?;
        #[cfg(feature = "extensions")]
        let observer = event_loop.observer();
        let thread = thread::Builder::new()
            .name("c10d-store".to_owned())
            .spawn(move || event_loop.run())?;
        let running = ProcessBound::new(Running {
            stop,
            counts,
            #[cfg(feature = "extensions")]
            observer,
            waker,
            thread: Some(thread),
        });
        Ok(Self {
            local_addrs,
            running,
        })
    }

    /// Returns the address that the server listens on; the first address if there are several.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addrs[0]
    }

    /// Returns all addresses that the server listens on.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Returns the address of this host at which the first client of another host has reached the server, or `None`
    /// without such a client. A peer that did not complete the handshake is not a client. Does not block.
    #[must_use]
    pub fn reached_at(&self) -> Option<IpAddr> {
        self.running()?.counts.reached_at.get().copied()
    }

    /// Returns the addresses of the clients of other hosts, each once, the latest last, and at most the last eight. A peer
    /// that did not complete the handshake is not a client. Does not block.
    #[must_use]
    pub fn peers(&self) -> Vec<IpAddr> {
        let running = self.running();
        running.map_or_else(Vec::new, |running| running.counts.peers().clone())
    }

    /// Returns whether the server's thread is running. It runs until the server is dropped, unless a system call or
    /// the journal failed, which is logged: long-running hosts may check this from time to time.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let thread = self.running().and_then(|running| running.thread.as_ref());
        thread.is_some_and(|thread| !thread.is_finished())
    }

    /// Returns the number of connections, including connections that have not completed the handshake. A host can
    /// wait until its clients have disconnected before it stops.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        let running = self.running();
        running.map_or(0, |running| {
            running.counts.connections.load(Ordering::Acquire)
        })
    }

    /// Returns the number of connections that wait for a key, a barrier or an element of a queue.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        let running = self.running();
        running.map_or(0, |running| running.counts.waiting.load(Ordering::Acquire))
    }

    /// Limits the memory of the store's data from now on, in bytes: for launchers, which do not start the server
    /// themselves. The limit has the meaning of [`ServerOptions::with_memory_max`]; 0 is no limit. Does not block.
    pub fn set_memory_max(&self, bytes: usize) {
        if let Some(running) = self.running() {
            running.counts.memory_max.store(bytes, Ordering::Release);
        }
    }

    /// Returns the most memory of the store's data in bytes; `None` for no limit.
    #[must_use]
    pub fn memory_max(&self) -> Option<usize> {
        let memory_max = self.running()?.counts.memory_max.load(Ordering::Acquire);
        Some(memory_max).filter(|bytes| *bytes > 0)
    }

    /// Closes all connections and stops the thread. Blocks until the current request is complete, which
    /// takes microseconds, and with a journal until everything is kept, for at most 11 s.
    pub fn shutdown(self) {
        drop(self);
    }

    /// `None` in a forked child.
    fn running(&self) -> Option<&Running> {
        self.running.get().ok()
    }
}

#[cfg(feature = "extensions")]
impl TcpStoreServer {
    /// Like [`serve`](Self::serve), but does not block: the journal is read in the background. If several processes
    /// share the engine, this continues until this process becomes the leader, which can take days. Until then the
    /// server is a standby: it closes the connections of clients, and hands over connections that speak HTTP;
    /// observers get [`SnapshotError::StandsBy`]. If the journal cannot be read, the server stops, like after a later
    /// failure.
    ///
    /// # Errors
    /// The errors of [`serve`](Self::serve), except for the journal.
    pub fn stand_by(
        listeners: Vec<TcpListener>,
        options: ServerOptions,
    ) -> Result<Self, StoreError> {
        let journal = match &options.journal {
            None => ServedJournal::None,
            Some(source) => ServedJournal::StandBy(source.clone()),
        };
        Self::serve_with(journal, listeners, options)
    }

    /// Returns whether the server is a [standby](Self::stand_by): it does not serve the store yet.
    #[must_use]
    pub fn is_standby(&self) -> bool {
        self.running()
            .is_some_and(|running| running.counts.is_standby.load(Ordering::Acquire))
    }

    /// Returns the journal error that stopped the server, or `None` while it runs, and if it stopped for another
    /// reason. After such an error, the server can no longer persist writes, and has closed all connections.
    #[must_use]
    pub fn journal_failure(&self) -> Option<&JournalError> {
        self.running()?.counts.journal_failure.get()
    }

    /// Returns an observer, which reads the state of the server's connections and keys.
    #[must_use]
    pub fn observer(&self) -> StoreObserver {
        self.running.get_anywhere().observer.clone()
    }

    /// Installs the handler of connections that speak HTTP, replacing an earlier handler. Without a handler they are
    /// refused, like any other protocol. A connection that was handed over no longer counts as the server's
    /// connection, and is not subject to its limits: the server neither reads it again nor closes it when it stops. A
    /// server with credentials hands connections over as well: the handler decides which client may see which page.
    ///
    /// The handler is dropped with the server and its thread, or when it is replaced. Does not block.
    pub fn set_http_handler(&self, handler: Arc<dyn HttpHandler>) {
        if let Some(running) = self.running() {
            running.counts.http_handler.install(handler);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            // The thread cannot be woken, so joining it would hang.
            log::error!("cannot stop the store server: {error}");
            return;
        }
        if thread.join().is_err() {
            log::error!("the thread of the store server panicked");
        }
    }
}

fn server_error(source: io::Error) -> StoreError {
    StoreError::Server { source }
}
