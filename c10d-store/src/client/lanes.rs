//! Decides which connection a call uses, so that a waiting call does not delay other calls. Pure.
//!
//! Sequential calls share one connection, the first lane. While a call on it waits for a key, the wait *gives way* to
//! a call that the server answers at once: the waiting call cancels its wait, leaves the lane to the requesting
//! calls, and then takes the lane back and repeats the wait. The requesting calls go first, and calls that arrive in
//! the meantime request the lane again after the repeated wait: so neither starves, and the server checks the wait
//! between any two batches of other calls. A second wait uses the next lane, and so does any call while a wait that
//! cannot be repeated is in progress on all earlier lanes.
//!
//! Order between calls: a write without a reply (`set`) has certainly been carried out only when a later request on
//! the same connection has been answered. So a call may skip a lane only if the lane is *settled*: everything sent on
//! it before the wait has been acknowledged. A second wait does not check this again: the first lane was checked
//! once, after everything sent there. Writes on any lane except the first are acknowledged before the call returns.
//! Together, this means that a thread's next call sees its earlier writes, on any lane. Only a call of a cancel's
//! check cannot wait for that: it skips the lane of the call that runs the check.

use std::time::{Duration, Instant};

/// How long to wait for a call that may end at once before its wait must give way or another lane is
/// used. A round trip usually takes well under a millisecond, and another connection costs both sides
/// memory and a descriptor until the store is closed.
pub(super) const GRACE: Duration = Duration::from_millis(1);

/// A lane except the first that has been unused for this time needs no connection.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// The lanes and their users, which a `C` identifies: the thread of the call.
#[derive(Debug)]
pub(super) struct Lanes<C> {
    lanes: Vec<Lane<C>>,
}

#[derive(Debug)]
struct Lane<C> {
    state: State,
    taken_at: Instant,
    user: Option<C>,
    /// The call of a wait has left the lane, and takes it back after the requesting calls.
    parked: Option<C>,
    /// The number of calls that have requested this lane from its wait, and have no lane yet.
    asking: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// The lane is in use by a call that the server answers at once.
    Busy,
    /// The lane is in use by a call that may wait long.
    Waiting(Wait),
}

/// A call that may wait long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    /// The time at which the call began to wait, even if it has given way since.
    pub(super) since: Instant,
    /// Everything sent on its lane earlier has been acknowledged.
    pub(super) settled: bool,
    /// Whether the wait can be cancelled and repeated.
    pub(super) gives_way: bool,
}

/// The need of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A lane for requests that the server answers at once.
    Answer,
    /// A lane for a wait. Everything that the thread of the call has sent has been acknowledged.
    Wait,
}

/// The lane for a call, or how long to wait for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// Use this lane; it is the caller's until [`Lanes::give_back`].
    Lane(usize),
    /// [Ask](Lanes::ask) the wait on this lane to give way, if not done yet; then try again when a lane
    /// changes.
    GiveWay(usize),
    /// Try again when a lane changes, at the latest at this time.
    WaitUntil(Option<Instant>),
}

impl<C> Default for Lanes<C> {
    fn default() -> Self {
        Self { lanes: Vec::new() }
    }
}

impl<C: Copy + PartialEq> Lanes<C> {
    /// Takes a lane, for a call that has asked the wait on lane `asked` to give way. Skips a lane that the caller uses
    /// or has left for a moment: that call asks a cancel's check, which makes this one.
    pub(super) fn take(
        &mut self,
        now: Instant,
        need: Need,
        asked: Option<usize>,
        caller: C,
    ) -> Take {
        let mut gives_way = None;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if [lane.user, lane.parked].contains(&Some(caller)) {
                continue;
            }
            let later = gives_way.map_or(Take::WaitUntil(None), Take::GiveWay);
            match lane.state {
                State::Idle if lane.parked.is_none() || asked == Some(index) => {
                    lane.state = State::Busy;
                    lane.user = Some(caller);
                    lane.taken_at = now;
                    return Take::Lane(index);
                }
                State::Idle | State::Busy if lane.parked.is_some() && need == Need::Wait => {}
                State::Idle | State::Busy => return later,
                State::Waiting(wait) => {
                    let patience_ends = wait.since + GRACE;
                    if now < patience_ends {
                        let patience = Take::WaitUntil(Some(patience_ends));
                        return gives_way.map_or(patience, Take::GiveWay);
                    }
                    if wait.gives_way && need == Need::Answer {
                        gives_way.get_or_insert(index);
                    }
                    if !wait.settled && need == Need::Answer {
                        return gives_way.map_or(Take::WaitUntil(None), Take::GiveWay);
                    }
                }
            }
        }
        if let Some(lane) = gives_way {
            return Take::GiveWay(lane);
        }
        self.lanes.push(Lane {
            state: State::Busy,
            taken_at: now,
            user: Some(caller),
            parked: None,
            asking: 0,
        });
        Take::Lane(self.lanes.len() - 1)
    }

    /// A call asks the wait on this lane to give way. It must [withdraw](Self::withdraw) later.
    pub(super) fn ask(&mut self, lane: usize) {
        self.lanes[lane].asking += 1;
    }

    /// A call that has asked has a lane now, or has failed.
    pub(super) fn withdraw(&mut self, lane: usize) {
        self.lanes[lane].asking -= 1;
    }

    /// Whether calls want the wait on this lane to give way.
    pub(super) fn must_give_way(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        lane.asking > 0
            && matches!(
                lane.state,
                State::Waiting(Wait {
                    gives_way: true,
                    ..
                })
            )
    }

    /// The call on this lane may wait long from now on.
    pub(super) fn start_waiting(&mut self, lane: usize, wait: Wait) {
        self.lanes[lane].state = State::Waiting(wait);
    }

    /// Everything sent on this lane before the waiting call has been acknowledged.
    pub(super) fn settled(&mut self, lane: usize) {
        if let State::Waiting(wait) = &mut self.lanes[lane].state {
            wait.settled = true;
        }
    }

    /// The call on this lane no longer waits.
    pub(super) fn stop_waiting(&mut self, lane: usize) {
        self.lanes[lane].state = State::Busy;
    }

    /// The waiting call on this lane leaves it to the requesting calls.
    pub(super) fn park(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        lane.state = State::Idle;
        lane.parked = lane.user.take();
    }

    /// Whether a waiting call has left this lane for a moment, so that another wait must not use it.
    pub(super) fn is_parked(&self, lane: usize) -> bool {
        self.lanes[lane].parked.is_some()
    }

    /// Takes the lane back for the call that has parked, unless another call uses it or has yet to.
    pub(super) fn resume(&mut self, lane: usize) -> bool {
        let lane = &mut self.lanes[lane];
        let is_free = lane.state == State::Idle && lane.asking == 0;
        if is_free {
            lane.state = State::Busy;
            lane.user = lane.parked.take();
        }
        is_free
    }

    /// The call that has parked ends without the lane.
    pub(super) fn abandon(&mut self, lane: usize) {
        self.lanes[lane].parked = None;
    }

    /// Whether a lane is one of those that a second wait needed, and has been idle since.
    pub(super) fn is_unused(&self, index: usize, now: Instant) -> bool {
        let lane = &self.lanes[index];
        index > 0
            && lane.state == State::Idle
            && lane.parked.is_none()
            && lane.asking == 0
            && now.saturating_duration_since(lane.taken_at) > UNUSED_MAX
    }

    /// The call on this lane has ended.
    pub(super) fn give_back(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        lane.state = State::Idle;
        lane.user = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Another caller than all before.
    fn other() -> u32 {
        static CALLERS: AtomicU32 = AtomicU32::new(0);
        CALLERS.fetch_add(1, Ordering::Relaxed)
    }

    fn wait(since: Instant) -> Wait {
        Wait {
            since,
            settled: true,
            gives_way: true,
        }
    }

    #[test]
    fn sequential_calls_share_one_lane() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for _ in 0..3 {
            assert_eq!(lanes.take(now, Need::Answer, None, other()), Take::Lane(0));
            lanes.give_back(0);
        }
    }

    #[test]
    fn a_call_inside_another_skips_its_lane() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        let late = now + GRACE;
        let me = other();
        let skips = |lanes: &mut Lanes<u32>, need| {
            assert_eq!(lanes.take(late, need, None, me), Take::Lane(1));
            lanes.give_back(1);
        };
        assert_eq!(lanes.take(now, Need::Answer, None, me), Take::Lane(0));
        skips(&mut lanes, Need::Answer);
        lanes.start_waiting(0, wait(now));
        skips(&mut lanes, Need::Answer);
        // It gives way.
        lanes.ask(0);
        lanes.stop_waiting(0);
        lanes.park(0);
        skips(&mut lanes, Need::Wait);
        assert_eq!(
            lanes.take(late, Need::Answer, Some(0), other()),
            Take::Lane(0)
        );
        lanes.withdraw(0);
        skips(&mut lanes, Need::Answer);
        lanes.give_back(0);
        skips(&mut lanes, Need::Answer);
        assert!(lanes.resume(0));
        lanes.start_waiting(0, wait(now));
        skips(&mut lanes, Need::Answer);
        lanes.give_back(0);
        assert_eq!(lanes.take(late, Need::Answer, None, me), Take::Lane(0));
    }

    #[test]
    fn a_call_waits_for_a_short_call() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now, Need::Answer, None, other()), Take::Lane(0));
        let later = now + Duration::from_secs(9);
        let take = lanes.take(later, Need::Answer, None, other());
        assert_eq!(take, Take::WaitUntil(None));
    }

    #[test]
    fn a_wait_that_cannot_be_repeated_is_skipped_after_the_grace_once_settled() {
        let now = Instant::now();
        let late = now + GRACE;
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now, Need::Answer, None, other()), Take::Lane(0));
        let barrier = Wait {
            settled: false,
            gives_way: false,
            ..wait(now)
        };
        lanes.start_waiting(0, barrier);
        assert_eq!(
            lanes.take(late, Need::Answer, None, other()),
            Take::WaitUntil(None)
        );
        lanes.settled(0);
        assert_eq!(
            lanes.take(now, Need::Answer, None, other()),
            Take::WaitUntil(Some(late))
        );
        assert_eq!(lanes.take(late, Need::Answer, None, other()), Take::Lane(1));

        // Calls now wait for the second lane, and prefer the first when it is free.
        assert_eq!(
            lanes.take(late, Need::Answer, None, other()),
            Take::WaitUntil(None)
        );
        lanes.give_back(0);
        assert_eq!(lanes.take(late, Need::Answer, None, other()), Take::Lane(0));
    }

    #[test]
    fn a_wait_gives_way_to_the_calls_that_asked_and_then_goes_before_later_ones() {
        let now = Instant::now();
        let late = now + GRACE;
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now, Need::Answer, None, other()), Take::Lane(0));
        lanes.start_waiting(0, wait(now));
        assert_eq!(
            lanes.take(now, Need::Answer, None, other()),
            Take::WaitUntil(Some(late))
        );
        assert!(!lanes.must_give_way(0));
        for _ in 0..2 {
            assert_eq!(
                lanes.take(late, Need::Answer, None, other()),
                Take::GiveWay(0)
            );
            lanes.ask(0);
        }
        assert!(lanes.must_give_way(0));
        lanes.stop_waiting(0);
        lanes.park(0);

        // A later call waits, and so does the wait itself, until both requesting calls have had the lane.
        for _ in 0..2 {
            assert!(!lanes.resume(0));
            assert_eq!(
                lanes.take(late, Need::Answer, None, other()),
                Take::WaitUntil(None)
            );
            assert_eq!(
                lanes.take(late, Need::Answer, Some(0), other()),
                Take::Lane(0)
            );
            lanes.withdraw(0);
            assert!(!lanes.resume(0), "the lane is in use");
            lanes.give_back(0);
        }
        assert_eq!(
            lanes.take(late, Need::Answer, None, other()),
            Take::WaitUntil(None)
        );
        assert!(lanes.resume(0));
        lanes.start_waiting(0, wait(now));
        assert_eq!(
            lanes.take(late, Need::Answer, None, other()),
            Take::GiveWay(0)
        );
    }

    #[test]
    fn a_second_wait_uses_another_lane_and_short_calls_use_it_when_idle() {
        let now = Instant::now();
        let late = now + GRACE;
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now, Need::Answer, None, other()), Take::Lane(0));
        lanes.start_waiting(0, wait(now));
        assert_eq!(
            lanes.take(late, Need::Answer, None, other()),
            Take::GiveWay(0)
        );
        lanes.ask(0);
        lanes.stop_waiting(0);
        lanes.park(0);
        assert_eq!(
            lanes.take(late, Need::Answer, Some(0), other()),
            Take::Lane(0)
        );
        lanes.withdraw(0);
        // This call must wait as well.
        assert!(lanes.is_parked(0));
        lanes.give_back(0);
        assert_eq!(lanes.take(late, Need::Wait, None, other()), Take::Lane(1));
        assert!(lanes.resume(0));
        lanes.start_waiting(0, wait(now));
        lanes.start_waiting(1, wait(now));
        assert_eq!(
            lanes.take(late, Need::Answer, None, other()),
            Take::GiveWay(0)
        );
        assert_eq!(lanes.take(late, Need::Wait, None, other()), Take::Lane(2));
        lanes.give_back(1);
        assert_eq!(lanes.take(late, Need::Answer, None, other()), Take::Lane(1));
    }

    #[test]
    fn an_extra_lane_is_unused_after_a_while() {
        let now = Instant::now();
        let late = now + UNUSED_MAX * 2;
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now, Need::Answer, None, other()), Take::Lane(0));
        lanes.start_waiting(0, wait(now));
        let soon = now + GRACE;
        assert_eq!(lanes.take(soon, Need::Wait, None, other()), Take::Lane(1));
        assert!(!lanes.is_unused(1, late), "in use");
        lanes.give_back(1);
        lanes.give_back(0);
        assert!(!lanes.is_unused(1, now + UNUSED_MAX));
        assert!(lanes.is_unused(1, late) && !lanes.is_unused(0, late));
    }

    #[test]
    fn the_lane_of_a_parked_call_that_ends_is_free() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        assert_eq!(lanes.take(now, Need::Answer, None, other()), Take::Lane(0));
        lanes.park(0);
        assert_eq!(
            lanes.take(now, Need::Answer, None, other()),
            Take::WaitUntil(None)
        );
        lanes.abandon(0);
        assert_eq!(lanes.take(now, Need::Answer, None, other()), Take::Lane(0));
    }
}
