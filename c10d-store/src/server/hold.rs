//! How long a batch for the journal waits for requests that may share its sync. Pure: the clock is an argument.
//!
//! A sync costs as much processor time as dozens of requests, however small its batch is. So a batch waits while the
//! event loop has other requests to carry out, and goes as soon as it has none: nothing ever waits for a timer.

use std::time::{Duration, Instant};

/// A batch of as many bytes goes at once: half of what 256 clients with a counter each write. Larger ones save little,
/// and leave more clients without an answer, and so the loop without requests, during the sync.
const HELD_BYTES_MAX: usize = 6 << 10;

/// The longest that a batch waits, for a loop that always has requests which write little.
const HOLD_MAX: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Hold {
    /// The first iteration that has seen something of the batch that gathers.
    since: Option<Instant>,
}

impl Hold {
    /// Whether what has gathered can go to the journal. `is_busy`: the iteration that began `now` had requests, so that
    /// there may be more.
    pub(super) fn may_go(&mut self, gathered_bytes: usize, is_busy: bool, now: Instant) -> bool {
        if gathered_bytes == 0 {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        !is_busy
            || gathered_bytes >= HELD_BYTES_MAX
            || now.saturating_duration_since(since) >= HOLD_MAX
    }

    /// The batch has gone.
    pub(super) const fn start_next(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_batch_waits_only_while_there_are_requests() {
        let mut hold = Hold::default();
        let now = Instant::now();
        assert!(!hold.may_go(0, false, now), "there is nothing");
        assert!(!hold.may_go(40, true, now));
        assert!(!hold.may_go(HELD_BYTES_MAX - 1, true, now));
        assert!(hold.may_go(40, false, now));
        assert!(hold.may_go(HELD_BYTES_MAX, true, now));
    }

    #[test]
    fn the_wait_of_each_batch_is_bounded() {
        let mut hold = Hold::default();
        let mut now = Instant::now();
        for batch in 0..3 {
            let start = now;
            while !hold.may_go(40, true, now) {
                now += HOLD_MAX / 4;
            }
            assert_eq!(now - start, HOLD_MAX, "batch {batch}");
            hold.start_next();
        }
    }
}
