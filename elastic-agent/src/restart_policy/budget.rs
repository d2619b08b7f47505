//! Restarts within a sliding window of time.

use std::collections::VecDeque;
use std::time::Duration;

use super::rules::RestartBudget;

/// The longest history: a larger budget than this is not used up in any window.
const TIMES_MAX: usize = 10_000;

/// When restarts happened.
#[derive(Debug, Default)]
pub(super) struct Spent {
    times: VecDeque<Duration>,
}

impl Spent {
    pub(super) fn add(&mut self, now: Duration) {
        if self.times.len() == TIMES_MAX {
            self.times.pop_front();
        }
        self.times.push_back(now);
    }

    /// The last restart does not count.
    pub(super) fn take_back(&mut self) {
        self.times.pop_back();
    }

    /// How many restarts are left in the window that ends at `now`. A restart counts until the window's length has
    /// passed.
    pub(super) fn left(&self, budget: RestartBudget, now: Duration) -> usize {
        let recent = self
            .times
            .iter()
            .rev()
            .take_while(|at| now.saturating_sub(**at) < budget.window);
        budget.restarts.saturating_sub(recent.count())
    }

    /// No window of the past holds more restarts than allowed.
    #[cfg(test)]
    pub(super) fn check_invariants(&self, budget: RestartBudget, now: Duration) {
        for (index, end) in self.times.iter().enumerate() {
            let within = self.times.iter().take(index + 1);
            let count = within.filter(|at| *end - **at < budget.window).count();
            assert!(count <= budget.restarts, "{self:?} at {now:?}");
        }
    }
}
