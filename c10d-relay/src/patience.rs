//! How long the relay tries to reach its store. Pure: the current time is an argument.

use std::time::{Duration, Instant};

/// The patience of one search for the store.
#[derive(Debug)]
pub(crate) struct Patience {
    give_up_at: Instant,
    /// For a session that goes on: `None` for a new one, as the store may start later.
    refused_timeout: Option<Duration>,
    /// The first of the last attempts, all of which were refused.
    refused_since: Option<Instant>,
}

/// Whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Try again then.
    Retry(Instant),
    /// There is no time left.
    GiveUp,
    /// The store's machine has refused connections for this long: its process has ended.
    StoreEnded(Duration),
}

impl Patience {
    pub(crate) const fn new(give_up_at: Instant, refused_timeout: Option<Duration>) -> Self {
        Self {
            give_up_at,
            refused_timeout,
            refused_since: None,
        }
    }

    /// An attempt has failed; the next one would be after `delay`.
    pub(crate) fn on_failure(
        &mut self,
        is_refused: bool,
        now: Instant,
        delay: Duration,
    ) -> Decision {
        if is_refused {
            let refused_for = now - *self.refused_since.get_or_insert(now);
            if self.refused_timeout.is_some_and(|it| refused_for >= it) {
                return Decision::StoreEnded(refused_for);
            }
        } else {
            self.refused_since = None;
        }
        let again_at = now + delay;
        if again_at >= self.give_up_at {
            Decision::GiveUp
        } else {
            Decision::Retry(again_at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_store_that_refuses_connections_has_ended() {
        let start = Instant::now();
        let mut patience = Patience::new(start + 600 * SECOND, Some(30 * SECOND));
        let mut fail = |is_refused, seconds| {
            let now = start + seconds * SECOND;
            (patience.on_failure(is_refused, now, SECOND), now + SECOND)
        };
        for (is_refused, seconds) in [(true, 0), (true, 29), (false, 31), (true, 32), (true, 61)] {
            let (decision, again_at) = fail(is_refused, seconds);
            assert_eq!(decision, Decision::Retry(again_at), "after {seconds} s");
        }
        assert_eq!(fail(true, 62).0, Decision::StoreEnded(30 * SECOND));
    }

    #[test]
    fn a_store_that_has_never_answered_may_start_late() {
        let start = Instant::now();
        let mut patience = Patience::new(start + 600 * SECOND, None);
        let mut fail = |seconds| patience.on_failure(true, start + seconds * SECOND, SECOND);
        assert_eq!(fail(0), Decision::Retry(start + SECOND));
        assert_eq!(fail(500), Decision::Retry(start + 501 * SECOND));
        assert_eq!(fail(599), Decision::GiveUp);
    }
}
