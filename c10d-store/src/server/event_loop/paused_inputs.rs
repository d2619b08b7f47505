//! Long requests that have arrived in part while memory is scarce: one connection has the turn, and the remaining ones wait. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mio::Token;

/// A turn ends after this time without progress: the peer may never send the rest of its request.
const TURN_MAX: Duration = Duration::from_secs(1);

/// The turn lasts longer if this much of the request has arrived.
const PROGRESS_BYTES: usize = 64 << 10;

/// The order in which long requests continue.
#[derive(Debug, Default)]
pub(super) struct PausedInputs {
    turn: Option<Turn>,
    waiting: VecDeque<Token>,
    /// How many requests continued after the last turn without progress. The number doubles with each such turn, so that
    /// peers that send nothing cause a delay of only the logarithm of their number.
    width: usize,
    /// How many more requests continue now.
    due: usize,
}

/// The connection that got a turn most recently.
#[derive(Debug)]
struct Turn {
    token: Token,
    ends: Instant,
    bytes: usize,
}

impl PausedInputs {
    /// The connection that got a turn most recently.
    pub(super) fn turn(&self) -> Option<Token> {
        self.turn.as_ref().map(|turn| turn.token)
    }

    /// Gives the turn to a connection of whose request `bytes` have arrived.
    pub(super) fn begin(&mut self, token: Token, bytes: usize, now: Instant) {
        let ends = now + TURN_MAX;
        self.turn = Some(Turn { token, ends, bytes });
    }

    /// Records that `bytes` of this connection's request have arrived.
    pub(super) fn progress(&mut self, token: Token, bytes: usize, now: Instant) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.token == token)
            && bytes >= turn.bytes.saturating_add(PROGRESS_BYTES)
        {
            (turn.ends, turn.bytes) = (now + TURN_MAX, bytes);
        }
    }

    /// Has a connection wait for its turn.
    pub(super) fn wait(&mut self, token: Token) {
        self.waiting.push_back(token);
    }

    /// When the first waiting request continues at the latest.
    pub(super) fn next(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().filter(|_| !self.waiting.is_empty())?;
        Some(turn.ends)
    }

    /// Whether requests wait that could continue, because there is room or because the request with the turn `has_arrived`.
    pub(super) fn can_continue(&self, has_room: bool, has_arrived: bool) -> bool {
        !self.waiting.is_empty() && (has_room || has_arrived || self.due > 0)
    }

    /// The next connection that continues at `now`, if any. Without room it has to [`begin`](Self::begin).
    pub(super) fn take(
        &mut self,
        has_room: bool,
        has_arrived: bool,
        now: Instant,
    ) -> Option<Token> {
        if has_room || has_arrived {
            (self.width, self.due) = (1, 1);
        } else if self.due == 0 && self.next().is_some_and(|at| at <= now) {
            self.width = self.width.saturating_mul(2).max(1);
            self.due = self.width;
        }
        self.due = self.due.checked_sub(1)?;
        let token = self.waiting.pop_front();
        if token.is_none() {
            self.due = 0;
        }
        token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(count: usize, now: Instant) -> PausedInputs {
        let mut inputs = PausedInputs::default();
        inputs.begin(Token(0), 0, now);
        (1..=count).for_each(|number| inputs.wait(Token(number)));
        inputs
    }

    /// How many continue at this time, with neither room nor an end of the last turn.
    fn continued(inputs: &mut PausedInputs, now: Instant) -> usize {
        let mut count = 0;
        while let Some(token) = inputs.take(false, false, now) {
            inputs.begin(token, 0, now);
            count += 1;
        }
        count
    }

    #[test]
    fn requests_that_arrive_continue_one_after_another() {
        let now = Instant::now();
        let mut inputs = queue(3, now);
        assert_eq!(
            inputs.take(false, false, now),
            None,
            "the first one arrives"
        );
        for number in 1..=3 {
            assert!(inputs.can_continue(false, true));
            assert_eq!(inputs.take(false, true, now), Some(Token(number)));
            inputs.begin(Token(number), 0, now);
            assert_eq!(inputs.take(false, false, now), None);
        }
        assert_eq!((inputs.take(false, true, now), inputs.next()), (None, None));
        assert!(!inputs.can_continue(true, true));
    }

    #[test]
    fn a_turn_lasts_as_long_as_the_request_makes_progress() {
        let start = Instant::now();
        let mut inputs = queue(1, start);
        let step = TURN_MAX / 2;
        for number in 1..100 {
            let now = start + step * number;
            inputs.progress(Token(0), PROGRESS_BYTES * number as usize, now);
            assert_eq!(inputs.take(false, false, now), None);
        }
        // Less than that is no progress, and another connection's bytes are not either.
        let now = inputs.next().unwrap();
        inputs.progress(Token(0), PROGRESS_BYTES * 99 + 1, now);
        inputs.progress(Token(1), usize::MAX, now);
        assert_eq!(inputs.take(false, false, now), Some(Token(1)));
    }

    #[test]
    fn peers_that_send_nothing_delay_others_by_the_logarithm_of_their_number() {
        let mut now = Instant::now();
        let mut inputs = queue(400, now);
        let mut counts = Vec::new();
        while let Some(at) = inputs.next() {
            now = at;
            counts.push(continued(&mut inputs, now));
            assert_eq!(continued(&mut inputs, now), 0);
        }
        assert_eq!(counts, [1, 2, 4, 8, 16, 32, 64, 128, 145]);
        // A request that arrives begins with one again.
        let mut inputs = queue(10, now);
        for _ in 0..2 {
            now = inputs.next().unwrap();
            continued(&mut inputs, now);
        }
        let token = inputs.take(false, true, now).unwrap();
        inputs.begin(token, 0, now);
        now = inputs.next().unwrap();
        assert_eq!(continued(&mut inputs, now), 2);
    }

    #[test]
    fn all_continue_when_there_is_room() {
        let now = Instant::now();
        let mut inputs = queue(3, now);
        let continued = std::iter::from_fn(|| inputs.take(true, false, now)).count();
        assert_eq!(continued, 3);
    }
}
