//! Decides how long the server serves one connection before the next connection. Pure: the clock is an argument.
//!
//! Reading the clock costs about as much as a small request. Therefore, [`TurnClock`] counts work, and reads the
//! clock only after a certain amount: a connection that sends one request at a time never causes a reading.

use std::time::{Duration, Instant};

/// The time of one connection in an iteration of the event loop. The request that exceeds it is the last of the turn,
/// so it is shorter than the 10 ms that docs/spec/wire.md promises.
const TURN_MAX: Duration = Duration::from_millis(5);

/// The time of an iteration after which further connections wait for the next one, except one of those that wait.
const ITERATION_MAX: Duration = Duration::from_millis(20);

/// The work between two looks at the clock: about 25 us of requests, see [`StoreState::work`].
///
/// [`StoreState::work`]: crate::state::StoreState::work
const WORK_PER_LOOK: u64 = 256;

/// The work of reading from a socket and writing to it.
const WORK_OF_SOCKET_CALLS: u64 = 32;

/// The work of finding a session's client and counting its memory.
const WORK_OF_MOVING: u64 = 4;

/// Moved bytes that count as one unit of work.
const BYTES_PER_WORK: usize = 256;

#[derive(Debug)]
pub(super) struct TurnClock {
    /// The last look at the clock.
    now: Instant,
    /// Work since that reading.
    work: u64,
    turn_start: Instant,
    iteration_start: Instant,
}

impl TurnClock {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            now,
            work: 0,
            turn_start: now,
            iteration_start: now,
        }
    }

    /// An iteration of the event loop starts now.
    pub(super) const fn start_iteration(&mut self, now: Instant) {
        self.now = now;
        self.work = 0;
        self.iteration_start = now;
    }

    /// The turn of a connection starts about now.
    pub(super) const fn start_turn(&mut self) {
        self.turn_start = self.now;
    }

    /// This many bytes were received.
    pub(super) fn received(&mut self, bytes: usize, clock: impl FnOnce() -> Instant) {
        let work = WORK_OF_SOCKET_CALLS + (bytes / BYTES_PER_WORK) as u64;
        self.spend(work, clock);
    }

    /// Bytes of a session's client were kept, or handed to its session.
    pub(super) fn moved(&mut self, bytes: usize, clock: impl FnOnce() -> Instant) {
        self.spend(WORK_OF_MOVING + (bytes / BYTES_PER_WORK) as u64, clock);
    }

    /// The turn has caused this much work.
    #[inline]
    pub(super) fn spend(&mut self, work: u64, clock: impl FnOnce() -> Instant) {
        self.work += work;
        if self.work >= WORK_PER_LOOK {
            self.work = 0;
            self.now = clock();
        }
    }

    /// Whether other connections must be served first.
    #[inline]
    pub(super) fn is_turn_over(&self) -> bool {
        self.now.saturating_duration_since(self.turn_start) >= TURN_MAX
    }

    /// Whether connections with new input wait for the next iteration.
    pub(super) fn is_iteration_over(&self) -> bool {
        self.now.saturating_duration_since(self.iteration_start) >= ITERATION_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Spends `work` in pieces that take `each` on a virtual clock, until the turn is over. Returns the number of
    /// pieces and of readings of the clock.
    fn turn_of(work: u64, each: Duration) -> (u32, u32) {
        let now = Cell::new(Instant::now());
        let looks = Cell::new(0);
        let mut turn = TurnClock::new(now.get());
        turn.start_turn();
        let mut pieces = 0;
        while !turn.is_turn_over() {
            now.set(now.get() + each);
            turn.spend(work, || {
                looks.set(looks.get() + 1);
                now.get()
            });
            pieces += 1;
        }
        (pieces, looks.get())
    }

    #[test]
    fn small_requests_share_a_look_at_the_clock() {
        let (requests, looks) = turn_of(2, Duration::from_nanos(200));
        assert!((25_000..26_000).contains(&requests), "{requests}");
        assert_eq!(looks, requests / 128);
    }

    #[test]
    fn a_turn_ends_with_the_large_request_that_exceeds_it() {
        assert_eq!(turn_of(10_000, Duration::from_millis(1)), (5, 5));
        assert_eq!(turn_of(1_000_000, Duration::from_millis(100)), (1, 1));
    }

    #[test]
    fn an_iteration_has_several_turns() {
        let start = Instant::now();
        let mut turn = TurnClock::new(start);
        for turns in 1..=4 {
            turn.start_turn();
            assert!(!turn.is_turn_over() && !turn.is_iteration_over());
            turn.spend(WORK_PER_LOOK, || start + TURN_MAX * turns);
            assert!(turn.is_turn_over());
        }
        assert!(turn.is_iteration_over());
        turn.start_iteration(start + ITERATION_MAX);
        assert!(!turn.is_iteration_over());
    }
}
