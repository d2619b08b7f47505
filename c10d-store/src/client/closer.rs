//! Closes a connection that another thread uses.

use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use c10d_socket::Cancel;
use mio::net::TcpStream;

/// Closes the connection that another thread uses, and any connection that this thread opens later.
#[derive(Debug, Clone)]
pub struct Closer {
    /// Interrupts the thread while it has no connection.
    closed: Cancel,
    socket: Arc<Mutex<Option<Arc<TcpStream>>>>,
}

impl Default for Closer {
    fn default() -> Self {
        Self {
            closed: Cancel::new(),
            socket: Arc::default(),
        }
    }
}

impl Closer {
    /// Closes the current connection and any that the thread opens later, and interrupts the thread's attempts to connect;
    /// their calls fail immediately. Does not block.
    pub fn close(&self) {
        // First, so that no connection is watched after this one.
        self.closed.cancel();
        let socket = self.lock().take();
        if let Some(socket) = socket
            && let Err(error) = socket.shutdown(Shutdown::Both)
        {
            log::debug!("cannot shut down a connection: {error}");
        }
    }

    /// Returns whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// The [`Cancel`] that [`close`](Self::close) cancels.
    pub(super) const fn closed(&self) -> &Cancel {
        &self.closed
    }

    /// The thread uses this connection from now on. False if it must not.
    #[must_use]
    pub(super) fn watch(&self, socket: &Arc<TcpStream>) -> bool {
        let mut watched = self.lock();
        if self.is_closed() {
            return false;
        }
        *watched = Some(Arc::clone(socket));
        true
    }

    /// The thread uses none.
    pub(super) fn forget(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<TcpStream>>> {
        // The code that holds the lock does not panic.
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
