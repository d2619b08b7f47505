//! Whether a standby watches over the leader's process, and when it tries to do so again. Pure.

use std::time::{Duration, Instant};

/// The time until a standby without a connection to the leader's process tries again. Each time costs etcd a read, so it doubles with
/// each attempt that fails, up to the longest one.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(320);

/// Whether the end of a leader's process can be seen, by a vigil `V`.
#[derive(Debug, Default)]
pub(super) enum Watching<V> {
    #[default]
    Nobody,
    Process(V),
    NotNow(Retry),
}

/// The end of a process cannot be seen now: it has ended, its place was needed, or the network is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    id: u64,
    /// The number of failed attempts since the last vigil.
    failures: u32,
    pub(super) at: Instant,
}

impl Retry {
    /// The vigil over the process with this id is over.
    pub(super) fn after_vigil(id: u64, now: Instant) -> Self {
        Self::new(id, 0, now)
    }

    /// An attempt to watch over the process with this id has failed, perhaps not the first one.
    pub(super) fn after_failure(before: Option<Self>, id: u64, now: Instant) -> Self {
        let before = before.filter(|before| before.id == id);
        let failures = before.map_or(0, |before| before.failures);
        Self::new(id, failures.saturating_add(1), now)
    }

    fn new(id: u64, failures: u32, now: Instant) -> Self {
        let doublings = failures.saturating_sub(1).min(u32::BITS - 1);
        let pause = PAUSE.saturating_mul(1 << doublings).min(PAUSE_MAX);
        let at = now + pause;
        Self { id, failures, at }
    }

    /// Whether the process with this id is not to be tried yet.
    pub(super) fn holds_back(&self, id: u64, now: Instant) -> bool {
        self.id == id && now < self.at
    }

    /// Whether the attempt that failed is the first one.
    pub(super) const fn is_news(&self) -> bool {
        self.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standby that cannot connect once, for example because the network was cut for a moment, sees the end of the process later.
    #[test]
    fn a_process_is_tried_again_after_longer_and_longer_pauses() {
        let start = Instant::now();
        let mut now = start;
        let mut retry = Retry::after_vigil(7, now);
        let mut pauses = Vec::new();
        let mut news = 0;
        for _ in 0..40 {
            assert!(retry.holds_back(7, now) && !retry.holds_back(8, now));
            pauses.push((retry.at - now).as_secs());
            now = retry.at;
            assert!(!retry.holds_back(7, now));
            retry = Retry::after_failure(Some(retry), 7, now);
            news += u32::from(retry.is_news());
        }
        assert_eq!(pauses[..9], [5, 5, 10, 20, 40, 80, 160, 320, 320]);
        assert_eq!(pauses.last(), Some(&320));
        assert_eq!(news, 1);
        // Another process is tried soon, and so is a process that was watched in the meantime.
        for other in [
            Retry::after_failure(Some(retry), 8, now),
            Retry::after_failure(None, 7, now),
            Retry::after_vigil(7, now),
        ] {
            assert_eq!(other.at - now, PAUSE);
        }
    }
}
