//! Times of calls as milliseconds since the agent's start.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use crate::milliseconds::milliseconds;

/// Converts between instants and milliseconds since the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) const fn new(start: Instant) -> Self {
        Self { start }
    }

    /// The start itself: a deadline that has always passed.
    pub(crate) const fn start(self) -> Instant {
        self.start
    }

    /// Whole milliseconds, rounded down.
    pub(crate) fn ms_of(self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.start);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// When a call expires, rounded up; `None` for never.
    pub(crate) fn deadline_ms(self, started_at: Instant, timeout: Option<Duration>) -> Option<u64> {
        let at = started_at.checked_add(timeout?)?;
        let since = at.saturating_duration_since(self.start);
        Some(milliseconds(since))
    }

    pub(crate) fn at_ms(self, ms: u64) -> Deadline {
        Deadline::after(self.start, Duration::from_millis(ms))
    }
}
