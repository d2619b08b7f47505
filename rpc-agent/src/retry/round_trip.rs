//! How long the answers of a worker take, and how long it is worth waiting for one.

use std::time::Duration;

/// How long to wait before the first measurement: RFC 6298, 2.1.
pub(super) const UNMEASURED: Duration = Duration::from_secs(1);

/// The time from a call to its answer, smoothed as TCP does: RFC 6298, section 2.
///
/// Each attempt has its own id, so an answer always belongs to the attempt that is measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    measured: Option<Measured>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Measured {
    smoothed: Duration,
    variation: Duration,
}

impl RoundTrip {
    /// A call was answered after `took`.
    pub(crate) fn record(&mut self, took: Duration) {
        self.measured = Some(match &self.measured {
            None => Measured {
                smoothed: took,
                variation: took / 2,
            },
            Some(before) => Measured {
                smoothed: mean(before.smoothed, took, 8),
                variation: mean(before.variation, before.smoothed.abs_diff(took), 4),
            },
        });
    }

    /// After this time a missing answer is probably lost.
    pub(crate) fn timeout(&self) -> Duration {
        self.measured.as_ref().map_or(UNMEASURED, |measured| {
            measured
                .smoothed
                .saturating_add(measured.variation.saturating_mul(4))
        })
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
