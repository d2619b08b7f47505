//! The time as the core sees it: two readings, taken together, handed in.

use std::time::Duration;

use crate::timestamp::Timestamp;

/// One moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// On the clock that never jumps, since whatever moment the node has chosen as its first.
    pub monotonic: Duration,
    /// On the clock on the wall, which may be wrong, and may be set while the job runs.
    pub wall: Timestamp,
}

impl Now {
    /// The moment `duration` later, when nobody touches the clock on the wall.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self {
            monotonic: self.monotonic.saturating_add(duration),
            wall: self.wall.after(duration),
        }
    }
}
