//! A histogram of call durations, with fixed buckets.
//!
//! Recording is three relaxed atomic operations from any thread. `hdrhistogram` would need a lock or a
//! recorder for each thread, as its `record` takes `&mut self`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::counter::raise;

/// Each power of two of nanoseconds is divided into 16 equal buckets, so the width of a bucket is at most
/// a sixteenth of its least value. Each value below 32 ns has a bucket of its own.
const PARTS_LOG2: u32 = 4;

/// Covers all of `u64`, which is 584 years.
const BUCKETS: usize = ((u64::BITS - PARTS_LOG2 + 1) << PARTS_LOG2) as usize;

/// Counts durations. Takes 8 KiB.
pub(crate) struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Histogram {
    pub(crate) fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        raise(&self.max_ns, ns);
    }

    pub(crate) fn snapshot(&self) -> LatencySnapshot {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let buckets: Box<[u64]> = self.buckets.iter().map(read).collect();
        LatencySnapshot {
            count: buckets.iter().sum(),
            buckets,
            sum_ns: read(&self.sum_ns),
            max_ns: read(&self.max_ns),
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

/// The durations of successful calls up to one moment.
///
/// ```
/// use rpc_agent::MetricsSnapshot;
/// use std::time::Duration;
///
/// // Without calls, each duration is zero.
/// let latency = MetricsSnapshot::default().latency;
/// assert_eq!(latency.count(), 0);
/// assert_eq!(latency.quantile(0.99), Duration::ZERO);
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct LatencySnapshot {
    buckets: Box<[u64]>,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl LatencySnapshot {
    /// Number of recorded calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The duration within which this share of the calls ended: 0.5 for the median, 0.99 for p99. Shares
    /// are clamped to 0 to 1. Zero if no call is recorded.
    ///
    /// Never less than the exact quantile, and at most 6.25 % greater.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        // The cast saturates, and turns NaN into 0.
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                // The maximum may not include yet a call that is being recorded.
                return Duration::from_nanos(last_of(bucket).min(self.max_ns));
            }
        }
        Duration::ZERO
    }

    /// The longest duration, exact. Zero if no call is recorded.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The average duration. Zero if no call is recorded.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.count).unwrap_or(0))
    }
}

impl fmt::Display for LatencySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} measured, mean {:.1?}, p50 {:.1?}, p99 {:.1?}, max {:.1?}",
            self.count,
            self.mean(),
            self.quantile(0.5),
            self.quantile(0.99),
            self.max(),
        )
    }
}

impl fmt::Debug for LatencySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LatencySnapshot({self})")
    }
}

fn bucket_of(ns: u64) -> usize {
    // Number of low bits that the bucket ignores.
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(PARTS_LOG2 + 1);
    // Below 32 the value itself; else 16 to 31 in `ns >> shift`, and 16 buckets for each shift before.
    ((shift << PARTS_LOG2) as u64 + (ns >> shift)) as usize
}

/// The greatest value of a bucket.
fn last_of(bucket: usize) -> u64 {
    let parts = 1 << PARTS_LOG2;
    let shift = (bucket / parts).saturating_sub(1);
    let first_parts = (bucket - shift * parts) as u64;
    (first_parts << shift) | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recorded(times_ns: impl IntoIterator<Item = u64>) -> LatencySnapshot {
        let histogram = Histogram::default();
        for ns in times_ns {
            histogram.record(Duration::from_nanos(ns));
        }
        histogram.snapshot()
    }

    #[test]
    fn buckets_are_contiguous() {
        assert_eq!(bucket_of(0), 0);
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(last_of(bucket)), bucket);
            match last_of(bucket).checked_add(1) {
                Some(next) => assert_eq!(bucket_of(next), bucket + 1),
                None => assert_eq!(bucket, BUCKETS - 1),
            }
        }
        assert_eq!(last_of(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn quantiles_of_short_durations_are_exact() {
        let latency = recorded(1..=20);
        for (share, ns) in [
            (0.0, 1),
            (0.05, 1),
            (0.5, 10),
            (0.51, 11),
            (1.0, 20),
            (-1.0, 1),
            (7.0, 20),
            (f64::NAN, 1),
        ] {
            assert_eq!(latency.quantile(share), Duration::from_nanos(ns), "{share}");
        }
        assert_eq!(latency.mean(), Duration::from_nanos(10));
        assert_eq!(latency.count(), 20);
    }

    #[test]
    fn the_longest_duration_can_be_recorded() {
        let histogram = Histogram::default();
        histogram.record(Duration::MAX);
        let longest = Duration::from_nanos(u64::MAX);
        let latency = histogram.snapshot();
        assert_eq!(latency.max(), longest);
        assert_eq!(latency.quantile(0.5), longest);
    }

    #[test]
    fn one_slow_call_in_a_hundred_is_p100_and_not_p99() {
        let times = (0..99).map(|_| 80_000).chain([50_000_000]);
        let latency = recorded(times);
        assert!(latency.quantile(0.99) < Duration::from_micros(85));
        assert_eq!(latency.quantile(1.0), Duration::from_millis(50));
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_least_exact_and_at_most_a_sixteenth_greater(
            mut times_ns in prop::collection::vec((any::<u64>(), 0_u32..64), 1..200),
            share in 0.0..=1.0_f64,
        ) {
            let mut times_ns: Vec<u64> =
                times_ns.drain(..).map(|(bits, shift)| bits >> shift).collect();
            let latency = recorded(times_ns.iter().copied());
            times_ns.sort_unstable();
            let rank = (share * times_ns.len() as f64).ceil() as usize;
            let exact = times_ns[rank.max(1) - 1];
            let said = latency.quantile(share).as_nanos() as u64;
            prop_assert!(said >= exact);
            prop_assert!(said - exact <= exact / 16);
            prop_assert_eq!(latency.max().as_nanos() as u64, times_ns[times_ns.len() - 1]);
        }
    }
}
