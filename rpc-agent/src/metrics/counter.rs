//! Atomic numbers that threads update without waiting for each other.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that grows. Relaxed: it says nothing about other memory.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Raises a maximum. Most values are none, and those cost a read of what other threads rarely write.
pub(super) fn raise(max: &AtomicU64, value: u64) {
    if value > max.load(Ordering::Relaxed) {
        max.fetch_max(value, Ordering::Relaxed);
    }
}
