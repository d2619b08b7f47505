//! How long the answers of a worker take, and how long it is worth waiting for one.

use std::time::Duration;

/// How long to wait before the first measurement: RFC 6298, 2.1.
pub(super) const UNMEASURED: Duration = Duration::from_secs(1);

/// The time from a call to its answer, smoothed as TCP does: RFC 6298, section 2.
///
/// Each attempt has its own id, so an answer always belongs to the attempt that is measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    /// The smoothed time and its variation.
    measured: Option<(Duration, Duration)>,
}

impl RoundTrip {
    /// A call was answered after `took`.
    pub(crate) fn record(&mut self, took: Duration) {
        self.measured = Some(match self.measured {
            None => (took, took / 2),
            Some((smoothed, variation)) => {
                let deviation = smoothed.abs_diff(took);
                (mean(smoothed, took, 8), mean(variation, deviation, 4))
            }
        });
    }

    /// After this time a missing answer is probably lost.
    pub(crate) fn timeout(&self) -> Duration {
        let timeout = |(smoothed, variation): (Duration, Duration)| {
            smoothed.saturating_add(variation.saturating_mul(4))
        };
        self.measured.map_or(UNMEASURED, timeout)
    }
}

/// The mean of `before` and `now`, which counts for one part of `parts`.
fn mean(before: Duration, now: Duration, parts: u32) -> Duration {
    (before / parts)
        .saturating_mul(parts - 1)
        .saturating_add(now / parts)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_timeout_follows_the_measured_round_trip() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.timeout(), UNMEASURED);
        round_trip.record(ms(80));
        assert_eq!(round_trip.timeout(), ms(80 + 4 * 40));
        for _ in 0..100 {
            round_trip.record(ms(80));
        }
        assert_eq!(round_trip.timeout().as_millis(), 80);
    }

    #[test]
    fn one_late_answer_makes_the_next_wait_long_enough_for_another() {
        let mut round_trip = RoundTrip::default();
        for _ in 0..100 {
            round_trip.record(ms(1));
        }
        round_trip.record(ms(1000));
        assert!(round_trip.timeout() > ms(1000), "{round_trip:?}");
    }

    #[test]
    fn nothing_overflows() {
        let mut round_trip = RoundTrip::default();
        for took in [Duration::MAX, Duration::ZERO, Duration::MAX] {
            round_trip.record(took);
            let _ = round_trip.timeout();
        }
    }
}
