//! The time of a clock that also advances while the machine is suspended.

use std::ops::Add;
use std::time::Duration;

/// A point in time for a right that others may take over while this machine is suspended, such as a lease.
///
/// Everything else is measured with [`Instant`](std::time::Instant), which does not advance during that time: a deadline is not
/// missed only because the machine slept. If the host of a virtual machine stops it, no clock of the guest advances, so the guest
/// does not detect the pause.
///
/// ```
/// use c10d_socket::Moment;
/// use std::time::Duration;
///
/// let asked = Moment::now();
/// let until = asked + Duration::from_secs(2);
/// assert!(Moment::now().is_before(until));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Since the machine has started.
    time: Duration,
    /// How long of the time since the start the machine was suspended, at least and at most: two clocks are never
    /// read at once.
    asleep: (Duration, Duration),
}

impl Moment {
    /// Reads the clocks (Linux: `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC`). Elsewhere a suspended machine is not noticed.
    #[must_use]
    pub fn now() -> Self {
        let before = clock::awake();
        let time = clock::since_start();
        let after = clock::awake();
        Self {
            time,
            asleep: (time.saturating_sub(after), time.saturating_sub(before)),
        }
    }

    /// Returns the moment at which the clock without suspensions shows `awake`, and the clock with suspensions
    /// `time`.
    #[must_use]
    pub const fn from_clocks(awake: Duration, time: Duration) -> Self {
        let asleep = time.saturating_sub(awake);
        Self {
            time,
            asleep: (asleep, asleep),
        }
    }

    /// Returns the time since the machine started, and for how long of that time it was suspended, at least and at
    /// most.
    #[must_use]
    pub const fn parts(self) -> (Duration, (Duration, Duration)) {
        (self.time, self.asleep)
    }

    /// Returns whether this moment is earlier.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.time < other.time
    }
}

/// Later, if the machine is not suspended.
impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self {
            time: self.time.saturating_add(time),
            ..self
        }
    }
}

#[cfg(target_os = "linux")]
mod clock {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    pub(super) fn awake() -> Duration {
        read(ClockId::Monotonic)
    }

    pub(super) fn since_start() -> Duration {
        read(ClockId::Boottime)
    }

    fn read(clock: ClockId) -> Duration {
        // Both are positive.
        Duration::try_from(clock_gettime(clock)).unwrap_or_default()
    }
}

#[cfg(not(target_os = "linux"))]
mod clock {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    static START: OnceLock<Instant> = OnceLock::new();

    pub(super) fn awake() -> Duration {
        START.get_or_init(Instant::now).elapsed()
    }

    pub(super) fn since_start() -> Duration {
        awake()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_awake_was_not_suspended() {
        let mut last = Moment::now();
        for _ in 0..10_000 {
            let now = Moment::now();
            assert!(!now.is_before(last));
            // The bounds overlap.
            assert!(now.asleep.0 <= last.asleep.1, "{last:?}, then {now:?}");
            last = now;
        }
    }
}
