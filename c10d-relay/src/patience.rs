//! Decides how long and how often the relay tries to reach its store. Pure: the current time and the seed are
//! arguments.

use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions};

/// The longest pause between two attempts if ranks wait for the store, without the jitter. A refused connection costs its
/// machine little, even of thousands of relays.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The patience of one search for the store.
#[derive(Debug)]
pub(crate) struct Patience {
    give_up_at: Instant,
    /// How long the store may refuse connections of a continuing session; `None` for a new session, because the store
    /// may start later.
    refused_timeout: Option<Duration>,
    /// The time of the first of the last attempts, if all of them were refused.
    refused_since: Option<Instant>,
    backoff: Backoff,
}

/// Whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Try again at this time.
    Retry(Instant),
    /// There is no time left.
    GiveUp,
    /// The store's machine has refused connections for this long: its process has ended.
    StoreEnded(Duration),
}

impl Patience {
    /// `refused_timeout` is `None` for a new session. `seed` is for the lengths of the pauses.
    pub(crate) fn new(give_up_at: Instant, refused_timeout: Option<Duration>, seed: u64) -> Self {
        let mut backoff = BackoffOptions::default();
        if refused_timeout.is_some() {
            backoff = backoff.with_max(PAUSE_MAX);
        }
        Self {
            give_up_at,
            refused_timeout,
            refused_since: None,
            backoff: Backoff::new(backoff, seed),
        }
    }

    /// An attempt has failed.
    pub(crate) fn on_failure(&mut self, is_refused: bool, now: Instant) -> Decision {
        if is_refused {
            let refused_for = now - *self.refused_since.get_or_insert(now);
            if self.refused_timeout.is_some_and(|it| refused_for >= it) {
                return Decision::StoreEnded(refused_for);
            }
        } else {
            self.refused_since = None;
        }
        let again_at = now + self.backoff.next_delay();
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

    fn again_at(decision: Decision) -> Instant {
        match decision {
            Decision::Retry(at) => at,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_store_that_refuses_connections_has_ended() {
        let start = Instant::now();
        let mut patience = Patience::new(start + 600 * SECOND, Some(30 * SECOND), 7);
        let mut fail =
            |is_refused, seconds| patience.on_failure(is_refused, start + seconds * SECOND);
        for (is_refused, seconds) in [(true, 0), (true, 29), (false, 31), (true, 32), (true, 61)] {
            again_at(fail(is_refused, seconds));
        }
        assert_eq!(fail(true, 62), Decision::StoreEnded(30 * SECOND));
    }

    #[test]
    fn a_store_that_has_never_answered_may_start_late() {
        let start = Instant::now();
        let mut patience = Patience::new(start + 600 * SECOND, None, 7);
        let mut fail = |at| patience.on_failure(true, at);
        again_at(fail(start));
        again_at(fail(start + 500 * SECOND));
        let at_end = start + 600 * SECOND - Duration::from_millis(5);
        assert_eq!(fail(at_end), Decision::GiveUp);
    }

    /// However long the store was away: docs/how-to/relay.md.
    #[test]
    fn a_store_that_is_back_is_tried_within_a_second() {
        for seed in 0..100 {
            let start = Instant::now();
            let outage = Duration::from_secs_f64(fastrand::Rng::with_seed(seed).f64() * 600.0);
            let mut patience = Patience::new(start + 601 * SECOND, Some(600 * SECOND), seed);
            let mut now = start;
            while now < start + outage {
                now = again_at(patience.on_failure(true, now));
            }
            let late = now - (start + outage);
            assert!(late < SECOND, "seed {seed}: {late:?} after {outage:?}");
        }
    }
}
