//! Which connection a call takes, so that one that blocks holds up no other.
//!
//! A store is used over one connection, its first lane, as long as calls follow each other. While a
//! call waits on that connection for a key, others take the next lane, and so on. Knows no sockets,
//! clocks or threads: the present is an argument.
//!
//! Order between calls: a write that nobody answers (`set`) is only known to have been carried out
//! once a later request on the same connection has been answered. So a lane may be passed over only
//! when it is *settled*: everything sent on it before the wait has been acknowledged. And writes on
//! any lane but the first are acknowledged before the call returns. Together: whatever a thread has
//! written, its next call sees, on whichever lane.

use std::time::{Duration, Instant};

/// How long a call that might be over at once is waited for before another lane is taken. A round
/// trip takes well under a millisecond nearly everywhere, and a second connection costs both sides
/// memory and a descriptor for good.
const GRACE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Idle,
    /// In use by a call that the server answers at once.
    Busy,
    /// In use by a call that may wait for long.
    Blocking {
        since: Instant,
        settled: bool,
    },
}

/// What a call is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// Use this lane; it is the caller's until [`Lanes::give_back`].
    Lane(usize),
    /// Ask again when a lane changes, or at this moment at the latest.
    WaitUntil(Option<Instant>),
}

impl Lanes {
    /// Asks for a lane.
    pub(super) fn take(&mut self, now: Instant) -> Take {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            match *lane {
                Lane::Idle => {
                    *lane = Lane::Busy;
                    return Take::Lane(index);
                }
                Lane::Busy | Lane::Blocking { settled: false, .. } => return Take::WaitUntil(None),
                Lane::Blocking { since, .. } => {
                    let patience_ends = since + GRACE;
                    if now < patience_ends {
                        return Take::WaitUntil(Some(patience_ends));
                    }
                }
            }
        }
        self.lanes.push(Lane::Busy);
        Take::Lane(self.lanes.len() - 1)
    }

    /// The call on this lane may wait for long from now on.
    pub(super) fn begins_to_block(&mut self, lane: usize, now: Instant, settled: bool) {
        self.lanes[lane] = Lane::Blocking {
            since: now,
            settled,
        };
    }

    /// All that was sent on this lane before the waiting call has been acknowledged.
    pub(super) fn settled(&mut self, lane: usize) {
        if let Lane::Blocking { settled, .. } = &mut self.lanes[lane] {
            *settled = true;
        }
    }

    /// The call on this lane is answered at once again.
    pub(super) fn blocks_no_more(&mut self, lane: usize) {
        self.lanes[lane] = Lane::Busy;
    }

    /// The call on this lane is over.
    pub(super) fn give_back(&mut self, lane: usize) {
        self.lanes[lane] = Lane::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_follow_each_other_share_one_lane() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for _ in 0..3 {
            assert_eq!(lanes.take(now), Take::Lane(0));
            lanes.give_back(0);
        }
    }

    #[test]
    fn a_short_call_is_waited_for() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now), Take::Lane(0));
        assert_eq!(
            lanes.take(now + Duration::from_secs(9)),
            Take::WaitUntil(None)
        );
    }

    #[test]
    fn a_call_that_blocks_is_passed_after_the_grace_and_once_settled() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now), Take::Lane(0));
        lanes.begins_to_block(0, now, false);
        assert_eq!(lanes.take(now + GRACE), Take::WaitUntil(None));
        lanes.settled(0);
        assert_eq!(lanes.take(now), Take::WaitUntil(Some(now + GRACE)));
        assert_eq!(lanes.take(now + GRACE), Take::Lane(1));

        // The second lane is now the one to wait for, the first one is preferred when free.
        assert_eq!(lanes.take(now + GRACE), Take::WaitUntil(None));
        lanes.give_back(0);
        assert_eq!(lanes.take(now + GRACE), Take::Lane(0));
        lanes.blocks_no_more(0);
        lanes.give_back(1);
        assert_eq!(lanes.take(now + GRACE), Take::WaitUntil(None));
    }
}
