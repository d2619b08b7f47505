//! Reads the clocks.

use std::time::{Instant, SystemTime};

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

    pub(crate) fn now(self) -> Now {
        Now {
            monotonic: self.start.elapsed(),
            wall: Timestamp::from_system_time(SystemTime::now()),
        }
    }
}
