//! Calls with retries that are measured and can be abandoned together.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::Lock;
use crate::worker::WorkerId;

/// A group of calls with retries. [`AgentHandle::abandon_retries`](crate::AgentHandle::abandon_retries) stops the
/// retries of the group's calls to one worker, and of no other calls. The round trip of its calls is measured for
/// [`RetryOptions::with_measured_timeout`](crate::RetryOptions::with_measured_timeout).
///
/// A clone is a handle of the same group.
///
/// ```
/// use rpc_agent::{RetryGroup, RetryOptions};
///
/// let heartbeats = RetryGroup::new();
/// let retries = RetryOptions::default().with_group(&heartbeats);
/// assert_ne!(retries, RetryOptions::default());
/// ```
#[derive(Debug, Clone, Default)]
pub struct RetryGroup {
    workers: Arc<Lock<HashMap<WorkerId, Arc<GroupWorker>>>>,
}

/// One worker that a group calls.
#[derive(Debug, Default)]
struct GroupWorker {
    /// How often the group has abandoned it.
    times_abandoned: AtomicU64,
    round_trip: Lock<RoundTrip>,
}

impl RetryGroup {
    /// Creates a group without calls.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Abandons the calls to this worker that have begun.
    pub(crate) fn abandon(&self, worker: WorkerId) {
        let worker = self.worker(worker);
        worker.times_abandoned.fetch_add(1, Ordering::SeqCst);
    }

    fn worker(&self, worker: WorkerId) -> Arc<GroupWorker> {
        let mut workers = self.workers.lock();
        Arc::clone(workers.entry(worker).or_default())
    }
}

impl PartialEq for RetryGroup {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.workers, &other.workers)
    }
}

/// A call to one worker as a member of a group.
#[derive(Debug, Clone)]
pub(crate) struct RetryMembership {
    worker: Arc<GroupWorker>,
    /// `times_abandoned` when the call began.
    at_begin: u64,
}

impl RetryMembership {
    /// A call to `worker` begins.
    pub(crate) fn new(group: &RetryGroup, worker: WorkerId) -> Self {
        let worker = group.worker(worker);
        let at_begin = worker.times_abandoned.load(Ordering::SeqCst);
        Self { worker, at_begin }
    }

    /// Whether the group has abandoned the worker since the call began. Without a lock.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.worker.times_abandoned.load(Ordering::SeqCst) != self.at_begin
    }

    /// An attempt was answered after `took`.
    pub(crate) fn answered_after(&self, took: Duration) {
        self.worker.round_trip.lock().record(took);
    }

    /// Returns the time after which the answer to an attempt is probably lost.
    pub(crate) fn measured_timeout(&self) -> Duration {
        self.worker.round_trip.lock().timeout()
    }
}

/// How long to wait before the first measurement: RFC 6298, 2.1.
pub(super) const UNMEASURED: Duration = Duration::from_secs(1);

/// The time from a call to its answer, smoothed as TCP does: RFC 6298, section 2.
///
/// Each attempt has its own id, so an answer always belongs to the attempt that is measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RoundTrip {
    /// The smoothed time and its variation.
    measured: Option<(Duration, Duration)>,
}

impl RoundTrip {
    /// A call was answered after `took`.
    fn record(&mut self, took: Duration) {
        self.measured = Some(match self.measured {
            None => (took, took / 2),
            Some((smoothed, variation)) => {
                let deviation = smoothed.abs_diff(took);
                (mean(smoothed, took, 8), mean(variation, deviation, 4))
            }
        });
    }

    /// Returns the time after which a missing answer is probably lost.
    fn timeout(&self) -> Duration {
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

    #[test]
    fn members_of_one_worker_share_its_measurements() {
        let [a, b] = [1, 2].map(|id| WorkerId::new(id).unwrap());
        let group = RetryGroup::new();
        let unmeasured = RetryMembership::new(&group, a).measured_timeout();
        RetryMembership::new(&group, a).answered_after(Duration::from_millis(2));
        let measured = RetryMembership::new(&group, a).measured_timeout();
        assert_eq!(measured, Duration::from_millis(6));
        assert_eq!(
            RetryMembership::new(&group, b).measured_timeout(),
            unmeasured
        );
    }

    #[test]
    fn members_are_abandoned_by_worker_and_later_ones_are_not() {
        let [a, b] = [1, 2].map(|id| WorkerId::new(id).unwrap());
        let (group, other) = (RetryGroup::new(), RetryGroup::new());
        let to_a = RetryMembership::new(&group, a);
        let to_b = RetryMembership::new(&group, b);
        let of_other = RetryMembership::new(&other, a);
        group.clone().abandon(a);
        let later = RetryMembership::new(&group, a);
        assert!(to_a.is_abandoned());
        assert!(
            ![to_b, of_other, later]
                .iter()
                .any(RetryMembership::is_abandoned)
        );
        assert_ne!(group, other);
    }

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
