//! When a state machine acts next without an input. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// The times at which the timers of a machine are due. A timer that is not set is never due.
#[derive(Debug)]
pub(super) struct Timers<T>(BTreeMap<T, Duration>);

impl<T: Copy + Ord, const N: usize> From<[(T, Duration); N]> for Timers<T> {
    fn from(timers: [(T, Duration); N]) -> Self {
        Self(timers.into())
    }
}

impl<T: Copy + Ord> Timers<T> {
    /// Sets the timer, whatever it was set to.
    pub(super) fn set(&mut self, timer: T, at: Duration) {
        self.0.insert(timer, at);
    }

    /// Sets the timer to this time after `now`.
    pub(super) fn set_in(&mut self, timer: T, now: Duration, pause: Duration) {
        self.set(timer, now.saturating_add(pause));
    }

    pub(super) fn cancel(&mut self, timer: T) {
        self.0.remove(&timer);
    }

    /// When the timer is due; the end of time if it is not set.
    pub(super) fn at(&self, timer: T) -> Duration {
        self.0.get(&timer).copied().unwrap_or(Duration::MAX)
    }

    pub(super) fn is_due(&self, timer: T, now: Duration) -> bool {
        self.0.get(&timer).is_some_and(|at| *at <= now)
    }

    /// Whether the timer is due. It is then no longer set.
    pub(super) fn take_due(&mut self, timer: T, now: Duration) -> bool {
        let is_due = self.is_due(timer, now);
        if is_due {
            self.cancel(timer);
        }
        is_due
    }

    /// When the first of the timers is due for which `is_awaited` is true.
    pub(super) fn next(&self, is_awaited: impl Fn(T) -> bool) -> Duration {
        let awaited = self.0.iter().filter(|(timer, _)| is_awaited(**timer));
        awaited.map(|(_, at)| *at).min().unwrap_or(Duration::MAX)
    }
}
