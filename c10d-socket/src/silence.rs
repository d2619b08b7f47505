//! Decides whether a peer that should send something from time to time still lives.
//!
//! Pure: the current time is an argument. The caller chooses the clock: an [`Instant`], or a [`Duration`] since an event such as
//! the start of the process.

use std::ops::Add;
use std::time::{Duration, Instant};

/// A longer silence than this is not measured: each clock can express the time after it.
const LIMIT_MAX: Duration = Duration::from_secs(100 * 365 * 86400);

/// The silence of a peer: when its last sign of life arrived, and how long it may send nothing.
///
/// ```
/// use c10d_socket::{Liveness, Silence};
/// use std::time::Duration;
///
/// let second = Duration::from_secs;
/// let silence = Silence::new(second(10), second(5)).suspect_after(second(2));
/// assert_eq!(silence.check(second(11)), Liveness::Alive { until: Some(second(12)) });
/// assert_eq!(silence.check(second(12)), Liveness::Suspect { until: Some(second(15)) });
/// assert_eq!(silence.check(second(15)), Liveness::Lost);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence<T = Instant> {
    heard: T,
    suspect_after: Option<Duration>,
    lost_after: Option<Duration>,
}

/// The state of a peer at a moment, as far as its silence shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness<T = Instant> {
    /// The peer lives at least until this time, at which the caller checks again; forever if `None`.
    Alive {
        /// The time of the next check.
        until: Option<T>,
    },
    /// The peer has sent nothing for long, and counts as lost from this time on; never if `None`.
    Suspect {
        /// The time of the next check.
        until: Option<T>,
    },
    /// The peer has sent nothing for the longest time that it may.
    Lost,
}

impl<T: Copy + Ord + Add<Duration, Output = T>> Silence<T> {
    /// Begins the silence of a peer whose last sign of life arrived at `heard`. The peer is lost when it has sent
    /// nothing for `lost_after`; it is never lost for `None`, and for more than 100 years, such as [`Duration::MAX`].
    #[must_use]
    pub fn new(heard: T, lost_after: impl Into<Option<Duration>>) -> Self {
        Self {
            heard,
            suspect_after: None,
            lost_after: lost_after.into(),
        }
    }

    /// Sets the silence after which the peer is suspect. Without it, the peer is alive until it is lost.
    #[must_use]
    pub const fn suspect_after(mut self, silence: Duration) -> Self {
        self.suspect_after = Some(silence);
        self
    }

    /// Returns the state of the peer at `now`, according to its silence.
    #[must_use]
    pub fn check(&self, now: T) -> Liveness<T> {
        let (suspect_at, lost_at) = (self.suspect_at(), self.lost_at());
        let has_passed = |at: Option<T>| at.is_some_and(|at| at <= now);
        if has_passed(lost_at) {
            Liveness::Lost
        } else if has_passed(suspect_at) {
            Liveness::Suspect { until: lost_at }
        } else {
            Liveness::Alive {
                until: [suspect_at, lost_at].into_iter().flatten().min(),
            }
        }
    }

    /// Returns whether the peer is lost at `now`.
    #[must_use]
    pub fn is_lost(&self, now: T) -> bool {
        self.check(now) == Liveness::Lost
    }

    /// Returns when the peer becomes suspect if it sends nothing.
    #[must_use]
    pub fn suspect_at(&self) -> Option<T> {
        self.after(self.suspect_after?)
    }

    /// Returns when the peer is lost if it sends nothing.
    #[must_use]
    pub fn lost_at(&self) -> Option<T> {
        self.after(self.lost_after?)
    }

    fn after(&self, silence: Duration) -> Option<T> {
        (silence <= LIMIT_MAX).then(|| self.heard + silence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_silent_peer_is_alive_then_suspect_then_lost() {
        let silence = Silence::new(seconds(100), seconds(15)).suspect_after(seconds(5));
        let (suspect_at, lost_at) = (Some(seconds(105)), Some(seconds(115)));
        for now in 90..130 {
            let expected = match now {
                ..105 => Liveness::Alive { until: suspect_at },
                105..115 => Liveness::Suspect { until: lost_at },
                115.. => Liveness::Lost,
            };
            assert_eq!(silence.check(seconds(now)), expected, "at {now} s");
            assert_eq!(silence.is_lost(seconds(now)), now >= 115, "at {now} s");
        }
    }

    #[test]
    fn a_peer_without_a_limit_is_never_lost() {
        let far = seconds(1 << 40);
        for limit in [None, Some(Duration::MAX)] {
            let silence = Silence::new(seconds(1), limit);
            assert_eq!(silence.check(far), Liveness::Alive { until: None });
            let suspicious = silence.suspect_after(seconds(5));
            assert_eq!(suspicious.check(far), Liveness::Suspect { until: None });
        }
    }

    #[test]
    fn a_limit_before_the_suspicion_decides() {
        let silence = Silence::new(seconds(1), seconds(2)).suspect_after(seconds(4));
        let until = Some(seconds(3));
        assert_eq!(silence.check(seconds(2)), Liveness::Alive { until });
        assert_eq!(silence.check(seconds(3)), Liveness::Lost);
    }

    #[test]
    fn the_times_of_the_system_are_a_clock() {
        let now = Instant::now();
        let silence = Silence::new(now, seconds(2));
        assert!(!silence.is_lost(now));
        assert_eq!(silence.lost_at(), Some(now + seconds(2)));
        assert!(silence.is_lost(now + seconds(2)));
        assert!(!Silence::new(now, Duration::MAX).is_lost(now + seconds(1 << 20)));
    }
}
