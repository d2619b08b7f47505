//! How long the parts of a round have taken.

use std::time::Duration;

use super::ending::RoundPhases;

/// Takes the time of a round that goes on.
#[derive(Debug)]
pub(super) struct RoundClock {
    /// When the current phase began.
    since: Duration,
    phases: RoundPhases,
    restarts: usize,
}

impl RoundClock {
    pub(super) fn start(restarts: usize, now: Duration) -> Self {
        Self {
            since: now,
            phases: RoundPhases::default(),
            restarts,
        }
    }

    /// Ends the phase that `phase` selects.
    pub(super) fn end(
        &mut self,
        now: Duration,
        phase: impl FnOnce(&mut RoundPhases) -> &mut Duration,
    ) {
        *phase(&mut self.phases) += now.saturating_sub(self.since);
        self.since = now;
    }

    /// The times of the phases that have ended.
    pub(super) const fn phases(&self) -> &RoundPhases {
        &self.phases
    }

    /// How many restarts had been used when the round began.
    pub(super) const fn restarts(&self) -> usize {
        self.restarts
    }
}
