//! How often a snapshot may be taken.

use std::time::Duration;

/// The shortest time between two snapshots: the page shows ages in seconds.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The shortest time until a snapshot is replaced to which the launchers have not added the activity of their workers. A
/// command may have asked them for it.
const INTERVAL_MIN_UNOBSERVED: Duration = Duration::from_millis(100);

/// The longest, so that the page stays useful however expensive a snapshot is.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The store's thread may spend 1/333 of its time on snapshots: 3 ms a second. Two more are left for counters and for
/// handing over connections.
const STORE_SHARE: u32 = 333;

/// The status server's own thread may spend 1/4 of its time on explanations.
const EXPLAIN_SHARE: u32 = 4;

/// How long to keep a snapshot that took the store's thread at most `store` and whose explanation took `explain`.
pub(super) fn interval(store: Duration, explain: Duration) -> Duration {
    unobserved_interval(store, explain).max(INTERVAL_MIN)
}

/// The same for a snapshot without the activity of all workers.
pub(super) fn unobserved_interval(store: Duration, explain: Duration) -> Duration {
    let by_store = store.saturating_mul(STORE_SHARE);
    let by_explain = explain.saturating_mul(EXPLAIN_SHARE);
    let interval = by_store.max(by_explain);
    interval.clamp(INTERVAL_MIN_UNOBSERVED, INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expensive_snapshot_is_kept_longer() {
        let ms = Duration::from_millis;
        let table = [
            (ms(0), ms(0), ms(1000)),
            (ms(3), ms(50), ms(1000)),
            (ms(20), ms(50), ms(6660)),
            (ms(1), ms(300), ms(1200)),
            (ms(1000), ms(0), ms(60_000)),
        ];
        for (store, explain, expected) in table {
            assert_eq!(interval(store, explain), expected, "{store:?} {explain:?}");
        }
        assert_eq!(unobserved_interval(ms(0), ms(5)), ms(100));
        assert_eq!(unobserved_interval(ms(1), ms(5)), ms(333));
    }
}
