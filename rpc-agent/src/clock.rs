//! Times of calls in whole milliseconds, the unit in which deadlines are kept and sent.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;

/// Rounded up, so that no time becomes none at all; `u64::MAX` at most.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    // Not by `as_nanos`: a division of 128 bits takes as long as the rest of a small call's bookkeeping.
    let of_second = u64::from(time.subsec_nanos().div_ceil(1_000_000));
    time.as_secs()
        .saturating_mul(1_000)
        .saturating_add(of_second)
}

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

    /// Whole milliseconds, rounded up.
    pub(crate) fn ms_until(self, at: Instant) -> u64 {
        milliseconds(at.saturating_duration_since(self.start))
    }

    /// Returns when a call expires, rounded up; `None` for never.
    pub(crate) fn deadline_ms(self, started_at: Instant, timeout: Option<Duration>) -> Option<u64> {
        let at = started_at.checked_add(timeout?)?;
        Some(self.ms_until(at))
    }

    pub(crate) fn at_ms(self, ms: u64) -> Deadline {
        Deadline::after(self.start, Duration::from_millis(ms))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_to_milliseconds() {
        let ns = Duration::from_nanos;
        let cases = [
            (0, 0),
            (1, 1),
            (1_000_000, 1),
            (1_000_001, 2),
            (999_999_999, 1_000),
        ];
        for (time_ns, ms) in cases {
            assert_eq!(milliseconds(ns(time_ns)), ms, "{time_ns} ns");
        }
        assert_eq!(milliseconds(Duration::from_millis(1 << 50)), 1 << 50);
        assert_eq!(milliseconds(Duration::MAX), u64::MAX);
    }
}
