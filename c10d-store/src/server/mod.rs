//! The TCPStore server: one thread, one event loop, one store.

mod connection;
mod event_loop;
mod options;
mod timers;

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use event_loop::EventLoop;
pub use options::ServerOptions;

/// A running TCPStore server that PyTorch's clients and this crate's can use.
///
/// It has one thread, `c10d-store`, which [`shutdown`](Self::shutdown) and `Drop` end: all
/// connections are closed at once, so that clients that wait get an error instead of hanging.
///
/// There is no authentication and no encryption on this wire: whoever reaches the port can read and
/// write everything. Bind the narrowest address that serves.
///
/// The behaviour follows PyTorch's libuv server (`torch/csrc/distributed/c10d/
/// TCPStoreLibUvBackend.cpp`) byte for byte, without its weaknesses: see docs/wire.md.
///
/// ```
/// use c10d_store::{ServerOptions, TcpStoreServer};
///
/// # fn main() -> std::io::Result<()> {
/// let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
/// println!("listening on {}", server.local_addr());
/// server.shutdown();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TcpStoreServer {
    local_addrs: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    waker: Arc<mio::Waker>,
    thread: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Listens on an address and serves it. Port 0 lets the system choose.
    ///
    /// # Errors
    /// When the address cannot be listened on, or the system has no thread or poll descriptor left.
    pub fn bind(address: impl ToSocketAddrs, options: ServerOptions) -> io::Result<Self> {
        let mut listen_options = None;
        let mut last_error = io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
        for address in address.to_socket_addrs()? {
            match TcpListener::bind(address) {
                Ok(listener) => {
                    listen_options = Some(listener);
                    break;
                }
                Err(error) => last_error = error,
            }
        }
        match listen_options {
            Some(listener) => Self::serve(vec![listener], options),
            None => Err(last_error),
        }
    }

    /// Serves sockets that are listening already, all of them with one store.
    ///
    /// # Errors
    /// When there is no listener, or the system has no thread or poll descriptor left.
    pub fn serve(listeners: Vec<TcpListener>, options: ServerOptions) -> io::Result<Self> {
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
        let (event_loop, waker) = EventLoop::new(listeners, options, Arc::clone(&stop))?;
        let thread = thread::Builder::new()
            .name("c10d-store".to_owned())
            .spawn(move || event_loop.run())?;
        Ok(Self {
            local_addrs,
            stop,
            waker: Arc::new(waker),
            thread: Some(thread),
        })
    }

    /// The address it listens on; the first one when there are several.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addrs[0]
    }

    /// All addresses it listens on.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Closes every connection and ends the thread. Blocks until it has ended, which takes as long
    /// as the request that is being carried out: microseconds.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            // Nothing else can reach the thread; joining it would hang.
            log::error!("cannot wake the store's server to stop it: {error}");
            return;
        }
        if thread.join().is_err() {
            log::error!("the store's server ended by a panic");
        }
    }
}

impl Drop for TcpStoreServer {
    fn drop(&mut self) {
        self.end();
    }
}
