//! Times since the start of a server.

use std::ops::Add;
use std::time::Duration;

/// A time since the server's start, in nanoseconds. Half the size of a `Duration`: every connection and every
/// key has some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The time since the server's start.
    pub(crate) const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self::from(self.since_start().saturating_add(duration))
    }
}

impl From<Duration> for Moment {
    /// Saturates after 584 years.
    fn from(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }
}
