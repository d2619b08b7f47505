//! Closes a connection that another thread uses.

use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::net::TcpStream;

/// Closes the connection that another thread uses, and any connection that this thread opens later.
#[derive(Debug, Clone, Default)]
pub struct Closer {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_closed: bool,
    socket: Option<Arc<TcpStream>>,
}

impl Closer {
    /// Closes the current connection and any that the thread opens later; their calls fail immediately. A thread that
    /// is resolving a name or connecting continues until its deadline. Does not block.
    pub fn close(&self) {
        let socket = {
            let mut shared = self.lock();
            shared.is_closed = true;
            shared.socket.take()
        };
        if let Some(socket) = socket
            && let Err(error) = socket.shutdown(Shutdown::Both)
        {
            log::debug!("cannot shut down a connection: {error}");
        }
    }

    /// Returns whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// The thread uses this connection from now on. False if it must not.
    #[must_use]
    pub(super) fn watch(&self, socket: &Arc<TcpStream>) -> bool {
        let mut shared = self.lock();
        if shared.is_closed {
            return false;
        }
        shared.socket = Some(Arc::clone(socket));
        true
    }

    /// The thread uses none.
    pub(super) fn forget(&self) {
        self.lock().socket = None;
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // The code that holds the lock does not panic.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
