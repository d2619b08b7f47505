//! The point in time when a blocking call must return.
//!
//! Pure: the current time is an argument.

use std::time::{Duration, Instant};

/// The latest instant at which a blocking call returns, or [`NEVER`](Self::NEVER).
///
/// Public functions turn the caller's timeout into a deadline once and pass that down, so that nested
/// waits cannot add up to more than the caller's timeout.
///
/// ```
/// use c10d_socket::Deadline;
/// use std::time::{Duration, Instant};
///
/// let now = Instant::now();
/// let deadline = Deadline::after(now, Duration::from_secs(5));
/// assert_eq!(deadline.remaining(now + Duration::from_secs(2)), Some(Duration::from_secs(3)));
/// assert!(deadline.has_passed(now + Duration::from_secs(5)));
/// assert_eq!(Deadline::after(now, None), Deadline::NEVER);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline: wait indefinitely.
    pub const NEVER: Self = Self(None);

    /// Returns the deadline `timeout` after `now`. [`Deadline::NEVER`] for `None`, and for a time beyond what the
    /// clock can express, such as [`Duration::MAX`]. A zero timeout has passed at `now`: it checks once without
    /// waiting.
    #[must_use]
    pub fn after(now: Instant, timeout: impl Into<Option<Duration>>) -> Self {
        Self(timeout.into().and_then(|timeout| now.checked_add(timeout)))
    }

    /// Creates a deadline at this instant.
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    /// Returns the instant; `None` for [`Deadline::NEVER`].
    #[must_use]
    pub const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Returns the remaining time: zero once it has passed, `None` for [`Deadline::NEVER`].
    #[must_use]
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(now))
    }

    /// Returns whether the deadline is at or before `now`.
    #[must_use]
    pub fn has_passed(self, now: Instant) -> bool {
        self.0.is_some_and(|at| at <= now)
    }

    /// Returns the later of two deadlines.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.max(b))),
            _ => Self::NEVER,
        }
    }

    /// Returns the earlier of two deadlines.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_later_than_every_deadline() {
        let now = Instant::now();
        let soon = Deadline::after(now, Duration::from_millis(1));
        let late = Deadline::after(now, Duration::from_secs(1));
        assert_eq!(soon.min(late), soon);
        assert_eq!(late.min(soon), soon);
        assert_eq!(late.at_least(soon), late);
        assert_eq!(soon.at_least(late), late);
        assert_eq!(soon.at_least(Deadline::NEVER), Deadline::NEVER);
        assert_eq!(Deadline::NEVER.min(late), late);
        assert_eq!(late.min(Deadline::NEVER), late);
        assert_eq!(Deadline::NEVER.min(Deadline::NEVER), Deadline::NEVER);
    }

    #[test]
    fn a_timeout_of_none_or_beyond_the_clock_is_never() {
        let now = Instant::now();
        assert_eq!(Deadline::after(now, None), Deadline::NEVER);
        assert_eq!(Deadline::after(now, Some(Duration::MAX)), Deadline::NEVER);
        assert_eq!(Deadline::after(now, Duration::MAX), Deadline::NEVER);
    }

    #[test]
    fn a_zero_timeout_has_passed_at_once() {
        let now = Instant::now();
        let deadline = Deadline::after(now, Duration::ZERO);
        assert!(deadline.has_passed(now));
        assert_eq!(deadline.remaining(now), Some(Duration::ZERO));
    }

    #[test]
    fn never_does_not_pass() {
        let far = Instant::now() + Duration::from_secs(1 << 30);
        assert!(!Deadline::NEVER.has_passed(far));
        assert_eq!(Deadline::NEVER.remaining(far), None);
    }
}
