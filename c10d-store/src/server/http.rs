//! Hands connections that speak HTTP to the program that embeds the server.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Serves the connections that arrive at a store's port and speak HTTP.
///
/// Clients of a store start with a zero byte, HTTP with an upper-case letter: a server can distinguish them by the
/// first byte.
pub trait HttpHandler: Send + Sync {
    /// Takes over a connection. It is called on the server's thread, which serves no client in the meantime: it must
    /// return at once and not panic, so it passes the connection on to another thread. A dropped connection is
    /// closed.
    fn serve(&self, connection: HttpConnection);
}

/// An HTTP connection that has arrived at a store's port.
#[derive(Debug)]
pub struct HttpConnection {
    /// The socket of the connection, in non-blocking mode.
    pub stream: TcpStream,
    /// The address of the other end.
    pub peer: SocketAddr,
    /// The bytes that have been read from it: the start of a request, at least one byte.
    pub received: Vec<u8>,
}

/// Whether a connection with this first byte speaks HTTP: no other protocol on this port starts with the name of
/// a method.
pub(super) const fn is_http(first: u8) -> bool {
    first.is_ascii_uppercase()
}

/// The installed handler, shared by the server's owner and its thread.
#[derive(Default)]
pub(super) struct InstalledHandler(Mutex<Option<Arc<dyn HttpHandler>>>);

impl InstalledHandler {
    pub(super) fn install(&self, handler: Arc<dyn HttpHandler>) {
        let replaced = self.slot().replace(handler);
        // Dropped without the lock: it can be the last reference.
        drop(replaced);
    }

    pub(super) fn get(&self) -> Option<Arc<dyn HttpHandler>> {
        self.slot().clone()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn HttpHandler>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for InstalledHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_installed = self.slot().is_some();
        f.debug_tuple("InstalledHandler")
            .field(&is_installed)
            .finish()
    }
}
