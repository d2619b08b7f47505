//! Peers with something unsent that waits for more to leave with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::peers::PeerEntry;
use crate::sync::Lock;

/// Which peers are to be flushed by the next thread that is about to sleep.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    peers: Lock<Vec<Arc<PeerEntry>>>,
    is_filled: AtomicBool,
    /// A thread outside of the pool has gathered something.
    has_outsiders: AtomicBool,
}

impl Gathered {
    /// `is_outsider`: the calling thread does not flush by itself, so that the standby thread must stay awake.
    pub(super) fn push(&self, peer: &Arc<PeerEntry>, is_outsider: bool) {
        self.peers.lock().push(Arc::clone(peer));
        self.is_filled.store(true, Ordering::SeqCst);
        if is_outsider && !self.has_outsiders.load(Ordering::Relaxed) {
            self.has_outsiders.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn take_outsiders(&self) -> bool {
        self.has_outsiders.swap(false, Ordering::Relaxed)
    }

    pub(super) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::SeqCst)
    }

    /// Takes all peers out; empty when there are none.
    pub(super) fn take(&self) -> Vec<Arc<PeerEntry>> {
        if !self.is_filled() || !self.is_filled.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut *self.peers.lock())
    }
}
