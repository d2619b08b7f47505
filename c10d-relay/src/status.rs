//! The status that the relay's thread shares with its owner.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::time::Instant;

use c10d_socket::{Cancel, Deadline};
use c10d_store::SessionError;

/// Whether there is a session with the store.
#[derive(Debug, Clone, Default)]
pub(crate) enum Upstream {
    /// The relay tries for the first time.
    #[default]
    Connecting,
    Connected,
    /// The relay tries to continue with a session.
    Lost,
    /// The last session has failed.
    Failed(Arc<SessionError>),
    /// The relay's thread has ended.
    Stopped,
}

#[derive(Debug, Default)]
pub(crate) struct Status {
    upstream: Mutex<Upstream>,
    changed: Condvar,
    pub(crate) stop: AtomicBool,
    /// The relay stops at this time, or earlier when its ranks have closed their connections.
    finish_by: Mutex<Option<Deadline>>,
    connections: AtomicUsize,
}

impl Wake for Status {
    fn wake(self: Arc<Self>) {
        drop(self.lock());
        self.changed.notify_all();
    }
}

impl Status {
    pub(crate) fn set(&self, upstream: Upstream) {
        *self.lock() = upstream;
        self.changed.notify_all();
    }

    pub(crate) fn get(&self) -> Upstream {
        self.lock().clone()
    }

    /// Waits until the relay is connected, has failed or has stopped. Returns its state then, or at the deadline; `None`
    /// if `cancel` has ended the wait.
    pub(crate) fn settled(
        self: &Arc<Self>,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Option<Upstream> {
        let mut watch = cancel.watch();
        let mut upstream = self.lock();
        while matches!(*upstream, Upstream::Connecting | Upstream::Lost) {
            let now = Instant::now();
            if deadline.has_passed(now) {
                break;
            }
            if watch.is_due() {
                drop(upstream);
                if watch.ask(|| Arc::clone(self).into()) {
                    return None;
                }
                upstream = self.lock();
                continue;
            }
            upstream = match deadline.remaining(now) {
                Some(left) => {
                    let waited = self.changed.wait_timeout(upstream, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.changed.wait(upstream);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        Some(upstream.clone())
    }

    pub(crate) fn finish_by(&self, deadline: Deadline) {
        let finish_by = self.finish_by.lock();
        *finish_by.unwrap_or_else(PoisonError::into_inner) = Some(deadline);
    }

    pub(crate) fn finishes_by(&self) -> Option<Deadline> {
        let finish_by = self.finish_by.lock();
        *finish_by.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_connections(&self, connections: usize) {
        self.connections.store(connections, Ordering::Release);
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Upstream> {
        // The code that holds the lock does not panic.
        self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
