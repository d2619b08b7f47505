//! Time as an argument: wall-clock timestamps in UTC without a calendar, and one reading of both clocks.

use std::time::{Duration, SystemTime};

/// A wall-clock timestamp: microseconds since 1970-01-01 00:00 UTC, the resolution of Python's
/// `datetime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    micros: i64,
}

impl Timestamp {
    /// The earliest timestamp of Python's `datetime`: the start of year 1.
    pub const MIN: Self = Self::from_micros(-62_135_596_800_000_000);
    /// The latest timestamp of Python's `datetime`: the end of year 9999.
    pub const MAX: Self = Self::from_micros(253_402_300_799_999_999);

    /// Creates a timestamp from microseconds since 1970.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self { micros }
    }

    /// Returns the number of microseconds since 1970.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.micros
    }

    /// Converts `time`, clamped to [`MIN`](Self::MIN) and [`MAX`](Self::MAX).
    #[must_use]
    pub fn from_system_time(time: SystemTime) -> Self {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Self::from_micros(0).after(since),
            Err(error) => Self::from_micros(0).before(error.duration()),
        }
    }

    /// The timestamp `duration` later, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.micros.saturating_add(micros)).min(Self::MAX)
    }

    /// The timestamp `duration` earlier, at least [`Timestamp::MIN`].
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.micros.saturating_sub(micros)).max(Self::MIN)
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(
            u64::try_from(self.micros.saturating_sub(earlier.micros)).unwrap_or(0),
        )
    }
}

/// A reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    /// Monotonic time since an origin that the node chose.
    pub(crate) monotonic: Duration,
    /// The wall clock, which may be wrong and may be set while the job runs.
    pub(crate) wall: Timestamp,
}

#[cfg(test)]
impl Now {
    /// The reading `duration` later, if the wall clock is not set in between.
    #[must_use]
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self {
            monotonic: self.monotonic.saturating_add(duration),
            wall: self.wall.after(duration),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stays_within_the_range_of_python() {
        let second = Duration::from_secs(1);
        assert_eq!(Timestamp::MAX.after(second), Timestamp::MAX);
        assert_eq!(Timestamp::MIN.before(second), Timestamp::MIN);
        assert_eq!(Timestamp::MIN.after(Duration::MAX), Timestamp::MAX);
        let now = Timestamp::from_micros(5_000_000);
        assert_eq!(now.after(second).since(now), second);
        assert_eq!(now.since(now.after(second)), Duration::ZERO);
    }
}
