//! Reads the clocks.

use std::time::{Duration, Instant, SystemTime};

use crate::values::clock::Now;
use crate::values::timestamp::Timestamp;

/// Both clocks of this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// The moment at this time of the monotonic clock.
    pub(crate) fn moment(self, monotonic: Duration) -> Instant {
        self.start + monotonic
    }

    pub(crate) fn now(self) -> Now {
        Now {
            monotonic: self.start.elapsed(),
            wall: Timestamp::from_system_time(SystemTime::now()),
        }
    }
}
