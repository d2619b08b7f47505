//! Atomic numbers that threads update without waiting for each other.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows. Relaxed, because no other memory depends on it.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Raises a maximum. Only reads if `value` is not greater, which is the usual case.
pub(super) fn raise(max: &AtomicU64, value: u64) {
    if value > max.load(Ordering::Relaxed) {
        max.fetch_max(value, Ordering::Relaxed);
    }
}
