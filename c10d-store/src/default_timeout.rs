//! The default timeout of a handle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Represents no limit.
const NONE: u64 = u64::MAX;

/// The default timeout of a handle, in nanoseconds. It has no lock, which a forked child could find held.
#[derive(Debug)]
pub(crate) struct DefaultTimeout(AtomicU64);

impl DefaultTimeout {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self(AtomicU64::new(nanoseconds(timeout)))
    }

    /// `None` for no limit.
    pub(crate) fn get(&self) -> Option<Duration> {
        let timeout = self.0.load(Ordering::Relaxed);
        (timeout != NONE).then_some(Duration::from_nanos(timeout))
    }

    pub(crate) fn set(&self, timeout: Option<Duration>) {
        self.0.store(nanoseconds(timeout), Ordering::Relaxed);
    }
}

/// Returns the timeout in nanoseconds, at most 584 years.
fn nanoseconds(timeout: Option<Duration>) -> u64 {
    let nanoseconds = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(NONE - 1);
    timeout.map_or(NONE, |timeout| nanoseconds(timeout).min(NONE - 1))
}
