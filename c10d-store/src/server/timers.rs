//! Deadlines of connections. Pure: the current time is an argument.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use mio::Token;

/// A heap of deadlines. A changed or cancelled deadline stays in the heap until it expires; the connection records
/// whether it is still valid.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, usize)>>,
}

impl Timers {
    pub(super) fn add(&mut self, at: Instant, token: Token) {
        self.heap.push(Reverse((at, token.0)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The next expired deadline, if any.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, Token)> {
        let Reverse((at, token)) = *self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        Some((at, Token(token)))
    }

    /// The next deadline that `is_valid`; removes invalid ones before it.
    pub(super) fn next(
        &mut self,
        mut is_valid: impl FnMut(Instant, Token) -> bool,
    ) -> Option<Instant> {
        while let Some(Reverse((at, token))) = self.heap.peek() {
            if is_valid(*at, Token(*token)) {
                return Some(*at);
            }
            self.heap.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn deadlines_expire_in_order_and_cancelled_ones_are_skipped() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timers = Timers::default();
        for seconds in [3, 1, 2] {
            timers.add(at(seconds), Token(seconds as usize));
        }
        assert_eq!(timers.pop_due(start), None);
        assert_eq!(timers.pop_due(at(1)), Some((at(1), Token(1))));
        assert_eq!(timers.pop_due(at(1)), None);
        let next = timers.next(|_, token| token == Token(3));
        assert_eq!(next, Some(at(3)), "the second one is cancelled");
        assert_eq!(timers.pop_due(at(9)), Some((at(3), Token(3))));
        assert_eq!(timers.next(|_, _| true), None);
    }
}
