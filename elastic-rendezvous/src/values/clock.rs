//! The time as an argument: one reading of both clocks.

use std::time::Duration;

use crate::values::timestamp::Timestamp;

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    /// Monotonic time since an origin that the node chose.
    pub(crate) monotonic: Duration,
    /// The wall clock, which may be wrong and may be set while the job runs.
    pub(crate) wall: Timestamp,
}

#[cfg(test)]
impl Now {
    /// The reading `duration` later, if the wall clock is not set meanwhile.
    #[must_use]
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self {
            monotonic: self.monotonic.saturating_add(duration),
            wall: self.wall.after(duration),
        }
    }
}
