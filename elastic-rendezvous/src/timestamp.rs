//! A moment on the wall clock, in UTC.
//!
//! Reads no clock and knows no calendar: the codec does.

use std::time::{Duration, SystemTime};

/// A moment on the wall clock: microseconds since 1970-01-01 00:00 UTC, the resolution of Python's
/// `datetime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    micros: i64,
}

impl Timestamp {
    /// The first moment that Python's `datetime` can hold, the beginning of the year 1.
    pub const MIN: Self = Self::from_micros(-62_135_596_800_000_000);
    /// The last moment that Python's `datetime` can hold, the end of the year 9999.
    pub const MAX: Self = Self::from_micros(253_402_300_799_999_999);

    /// The moment so many microseconds after the beginning of 1970.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self { micros }
    }

    /// Microseconds since the beginning of 1970.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.micros
    }

    /// `time`, kept within the years that Python's `datetime` can hold.
    #[must_use]
    pub fn from_system_time(time: SystemTime) -> Self {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Self::from_micros(0).after(since),
            Err(error) => Self::from_micros(0).before(error.duration()),
        }
    }

    /// The moment `duration` later, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.micros.saturating_add(micros)).min(Self::MAX)
    }

    /// The moment `duration` earlier, at least [`Timestamp::MIN`].
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.micros.saturating_sub(micros)).max(Self::MIN)
    }

    /// The time from `earlier` to this moment, zero when `earlier` is the later one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(
            u64::try_from(self.micros.saturating_sub(earlier.micros)).unwrap_or(0),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stays_within_what_python_can_hold() {
        let second = Duration::from_secs(1);
        assert_eq!(Timestamp::MAX.after(second), Timestamp::MAX);
        assert_eq!(Timestamp::MIN.before(second), Timestamp::MIN);
        assert_eq!(Timestamp::MIN.after(Duration::MAX), Timestamp::MAX);
        let now = Timestamp::from_micros(5_000_000);
        assert_eq!(now.after(second).since(now), second);
        assert_eq!(now.since(now.after(second)), Duration::ZERO);
    }
}
