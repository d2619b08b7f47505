//! Counters of the server's thread, for other threads to read.

use std::sync::atomic::AtomicUsize;

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicUsize,
    /// Connections that wait for a key, a barrier or an element of a queue.
    pub(super) waiting: AtomicUsize,
}
