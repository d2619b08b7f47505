//! Decides how long a batch for the journal waits for requests that may share its commit. Pure: the clock is an
//! argument.
//!
//! A commit costs as much processor time as dozens of requests, however small its batch is. Therefore, a batch waits
//! while the event loop has other requests to carry out, and is committed as soon as it has none.
//!
//! A slow commit, for example by an engine behind a network, divides the clients into two halves: the requests of one
//! half gather while the requests of the other half are committed, so each commit has half of the requests that it could
//! have. Therefore, after a slow commit that has let many clients continue, the next batch also waits for most of these
//! clients, at most as long as that commit took. If they send no requests in this time, the batches after that do not wait.

use std::time::{Duration, Instant};

/// A batch of this many bytes is committed at once: half of what 256 clients with a counter each write. Larger ones
/// save little, and leave more clients without an answer, and so the loop without requests, during the sync.
const HELD_BYTES_MAX: usize = 6 << 10;

/// The longest that a batch waits, for a loop that always has requests which write little.
const HOLD_MAX: Duration = Duration::from_millis(1);

/// The shortest commit that is slow. The event loop sleeps for whole milliseconds.
const SLOW_COMMIT: Duration = Duration::from_millis(1);

/// The fewest clients that are waited for: a few are served sooner in two halves.
const AWAITED_MIN: usize = 16;

/// A batch of this many bytes does not wait for clients, because it takes the engine more time than a commit does.
const AWAITING_BYTES_MAX: usize = 256 << 10;

/// The longest wait for clients: a commit can take seconds, as during an election of etcd.
const AWAITING_MAX: Duration = Duration::from_millis(10);

/// How many commits do not wait, after a commit whose clients did not arrive.
const COMMITS_UNAWAITED: u32 = 16;

#[derive(Debug, Default)]
pub(super) struct BatchDelay {
    /// The first iteration that has seen something of the batch that gathers.
    since: Option<Instant>,
    /// The time when the previous batch was handed to the journal.
    sent: Option<Instant>,
    awaited: Option<Awaited>,
    /// How many commits do not wait.
    unawaited: u32,
}

/// The clients that a batch waits for.
#[derive(Debug)]
struct Awaited {
    /// The clients that the batch waits for, including clients that are already in the batch.
    clients: usize,
    until: Instant,
}

/// The size of a batch so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gathered {
    pub(super) bytes: usize,
    /// That wait for its commit.
    pub(super) clients: usize,
}

impl BatchDelay {
    /// Whether what has gathered can go to the journal. `is_busy`: the iteration that began `now` had requests, so that
    /// there may be more.
    pub(super) fn may_go(&mut self, gathered: Gathered, is_busy: bool, now: Instant) -> bool {
        if gathered.bytes == 0 {
            return false;
        }
        if let Some(awaited) = &self.awaited {
            let are_here = gathered.clients >= awaited.clients;
            let is_large = gathered.bytes >= AWAITING_BYTES_MAX;
            let is_over = now >= awaited.until;
            if is_over && !are_here {
                self.unawaited = COMMITS_UNAWAITED;
            }
            return are_here || is_large || is_over;
        }
        let since = *self.since.get_or_insert(now);
        !is_busy
            || gathered.bytes >= HELD_BYTES_MAX
            || now.saturating_duration_since(since) >= HOLD_MAX
    }

    /// The batch has gone.
    pub(super) fn start_next(&mut self, now: Instant) {
        *self = Self {
            sent: Some(now),
            unawaited: self.unawaited,
            ..Self::default()
        };
    }

    /// The previous batch is kept, which lets `released` clients continue. In the meantime, `waiting` clients wait for the batch
    /// that gathers.
    pub(super) fn committed(&mut self, released: usize, waiting: usize, now: Instant) {
        let Some(sent) = self.sent.take() else {
            return;
        };
        let took = now.saturating_duration_since(sent);
        if took < SLOW_COMMIT || released < AWAITED_MIN {
            return;
        }
        if self.unawaited > 0 {
            self.unawaited -= 1;
            return;
        }
        self.awaited = Some(Awaited {
            clients: waiting + released - released / 8,
            until: now + took.min(AWAITING_MAX),
        });
    }

    /// When a batch has waited enough for clients; `None` if it waits for none.
    pub(super) fn until(&self) -> Option<Instant> {
        self.awaited.as_ref().map(|awaited| awaited.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Gathered = gathered(0, 0);

    const fn gathered(bytes: usize, clients: usize) -> Gathered {
        Gathered { bytes, clients }
    }

    /// A commit that takes this long and lets `released` clients continue, while `waiting` clients wait for the next commit.
    fn commit(hold: &mut BatchDelay, took: Duration, released: usize, waiting: usize) -> Instant {
        let sent = Instant::now();
        hold.start_next(sent);
        hold.committed(released, waiting, sent + took);
        sent + took
    }

    #[test]
    fn a_small_batch_waits_only_while_there_are_requests() {
        let mut hold = BatchDelay::default();
        let now = Instant::now();
        assert!(!hold.may_go(NONE, false, now), "there is nothing");
        assert!(!hold.may_go(gathered(40, 1), true, now));
        assert!(!hold.may_go(gathered(HELD_BYTES_MAX - 1, 1), true, now));
        assert!(hold.may_go(gathered(40, 1), false, now));
        assert!(hold.may_go(gathered(HELD_BYTES_MAX, 1), true, now));
    }

    #[test]
    fn the_wait_of_each_batch_is_bounded() {
        let mut hold = BatchDelay::default();
        let mut now = Instant::now();
        for batch in 0..3 {
            let start = now;
            while !hold.may_go(gathered(40, 1), true, now) {
                now += HOLD_MAX / 4;
            }
            assert_eq!(now - start, HOLD_MAX, "batch {batch}");
            hold.start_next(now);
        }
    }

    #[test]
    fn a_batch_waits_for_the_clients_of_a_slow_commit() {
        let mut hold = BatchDelay::default();
        let now = commit(&mut hold, SLOW_COMMIT, 128, 100);
        assert_eq!(hold.until(), Some(now + SLOW_COMMIT));
        assert!(!hold.may_go(NONE, false, now), "there is nothing");
        // Of the 128 clients, 112 have sent a request.
        for (clients, may_go) in [(100, false), (211, false), (212, true), (228, true)] {
            assert_eq!(hold.may_go(gathered(9000, clients), false, now), may_go);
        }
        let large = gathered(AWAITING_BYTES_MAX, 100);
        assert!(hold.may_go(large, true, now));
        hold.start_next(now);
        assert_eq!(hold.until(), None);
        let now = commit(&mut hold, Duration::from_secs(2), 128, 100);
        assert_eq!(hold.until(), Some(now + AWAITING_MAX));
    }

    #[test]
    fn nobody_waits_after_a_fast_commit_or_one_of_a_few_clients() {
        for (took, released) in [
            (SLOW_COMMIT / 2, 128),
            (SLOW_COMMIT * 9, AWAITED_MIN - 1),
            (SLOW_COMMIT * 9, 0),
        ] {
            let mut hold = BatchDelay::default();
            let now = commit(&mut hold, took, released, 200);
            assert!(hold.may_go(gathered(40, 200), false, now));
        }
    }

    #[test]
    fn clients_that_do_not_come_are_waited_for_once_in_a_while() {
        let mut hold = BatchDelay::default();
        for _ in 0..3 {
            let now = commit(&mut hold, 2 * SLOW_COMMIT, 64, 0);
            assert!(!hold.may_go(gathered(40, 1), false, now));
            assert!(hold.may_go(gathered(40, 1), true, now + 2 * SLOW_COMMIT));
            for _ in 0..COMMITS_UNAWAITED {
                let now = commit(&mut hold, 2 * SLOW_COMMIT, 64, 0);
                assert!(hold.may_go(gathered(40, 1), false, now));
            }
        }
    }
}
