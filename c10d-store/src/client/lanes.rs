//! Decides which connection a call uses, so that a call that blocks does not delay others. Pure.
//!
//! Sequential calls share one connection, the first lane. While a call on it waits for a key, other
//! calls use the next lane, and so on.
//!
//! Order between calls: a write without a reply (`set`) has certainly been carried out only when a
//! later request on the same connection has been answered. So a call may skip a lane only if the lane
//! is *settled*: everything sent on it before the wait has been acknowledged. Writes on any lane except
//! the first are acknowledged before the call returns. Together: a thread's next call sees what it has
//! written, on any lane.

use std::time::{Duration, Instant};

/// How long to wait for a call that may end at once before another lane is used. A round trip usually
/// takes well under a millisecond, and another connection costs both sides memory and a descriptor
/// until the store is closed.
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
    /// In use by a call that may wait long.
    Blocking {
        since: Instant,
        settled: bool,
    },
}

/// The lane for a call, or how long to wait for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// Use this lane; it is the caller's until [`Lanes::give_back`].
    Lane(usize),
    /// Ask again when a lane changes, at the latest at this time.
    WaitUntil(Option<Instant>),
}

impl Lanes {
    /// Takes a lane.
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

    /// The call on this lane may wait long from now on.
    pub(super) fn start_blocking(&mut self, lane: usize, now: Instant, settled: bool) {
        self.lanes[lane] = Lane::Blocking {
            since: now,
            settled,
        };
    }

    /// Everything sent on this lane before the waiting call has been acknowledged.
    pub(super) fn settled(&mut self, lane: usize) {
        if let Lane::Blocking { settled, .. } = &mut self.lanes[lane] {
            *settled = true;
        }
    }

    /// The call on this lane no longer waits.
    pub(super) fn stop_blocking(&mut self, lane: usize) {
        self.lanes[lane] = Lane::Busy;
    }

    /// The call on this lane has ended.
    pub(super) fn give_back(&mut self, lane: usize) {
        self.lanes[lane] = Lane::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_calls_share_one_lane() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for _ in 0..3 {
            assert_eq!(lanes.take(now), Take::Lane(0));
            lanes.give_back(0);
        }
    }

    #[test]
    fn a_call_waits_for_a_short_call() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now), Take::Lane(0));
        assert_eq!(
            lanes.take(now + Duration::from_secs(9)),
            Take::WaitUntil(None)
        );
    }

    #[test]
    fn a_blocking_call_is_skipped_after_the_grace_once_settled() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now), Take::Lane(0));
        lanes.start_blocking(0, now, false);
        assert_eq!(lanes.take(now + GRACE), Take::WaitUntil(None));
        lanes.settled(0);
        assert_eq!(lanes.take(now), Take::WaitUntil(Some(now + GRACE)));
        assert_eq!(lanes.take(now + GRACE), Take::Lane(1));

        // Calls now wait for the second lane, and prefer the first when it is free.
        assert_eq!(lanes.take(now + GRACE), Take::WaitUntil(None));
        lanes.give_back(0);
        assert_eq!(lanes.take(now + GRACE), Take::Lane(0));
        lanes.stop_blocking(0);
        lanes.give_back(1);
        assert_eq!(lanes.take(now + GRACE), Take::WaitUntil(None));
    }
}
