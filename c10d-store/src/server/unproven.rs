//! Connections that have not proved that they may be served. They make room for others, the oldest first.
//!
//! Pure: the shell says how far each connection is.

use std::collections::VecDeque;

use mio::Token;

/// The most TLS handshakes at a time. A legitimate peer takes a round trip and 0.3 ms of this server, so thousands of
/// them can return at once; each one holds about 10 KB.
const HANDSHAKES_MAX: usize = 8192;

/// A list with fewer entries is not searched for those that have proved themselves.
const SEARCHED_MIN: usize = 1024;

/// Turns of the event loop that a connection has before it makes room: one in which what it has sent is read, and one
/// in which its next message is. A turn is the longer the more peers there are to answer.
const TURNS_MIN: u64 = 2;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has sent nothing.
    Silent,
    /// It has begun a TLS handshake.
    Handshaking,
    /// It is served, or closed.
    Done,
}

/// The connection that makes room next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Oldest {
    /// This one, which is no longer in the lists.
    Found(Token, Stage),
    /// There are only some that have had no time to prove themselves.
    TooNew,
    None,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    token: Token,
    /// The turn in which it was accepted, or has begun its handshake.
    turn: u64,
}

#[derive(Debug, Default)]
pub(super) struct Unproven {
    turn: u64,
    /// Accepted connections, in this order; some have sent something since.
    silent: VecDeque<Entry>,
    /// Connections that have begun a TLS handshake, in this order; some have completed it.
    handshaking: VecDeque<Entry>,
    /// The length of `silent` at which it is searched for those that have sent something.
    search_silent_at: usize,
}

impl Unproven {
    pub(super) fn next_turn(&mut self) {
        self.turn += 1;
    }

    /// A connection was accepted.
    pub(super) fn accepted(&mut self, token: Token, stage: impl Fn(Token) -> Stage) {
        if self.silent.len() >= self.search_silent_at.max(SEARCHED_MIN) {
            self.silent
                .retain(|entry| stage(entry.token) == Stage::Silent);
            self.search_silent_at = 2 * self.silent.len();
        }
        let turn = self.turn;
        self.silent.push_back(Entry { token, turn });
    }

    /// A connection begins a TLS handshake. Returns the oldest of the others if there are too many.
    pub(super) fn handshake_begun(
        &mut self,
        token: Token,
        stage: impl Fn(Token) -> Stage,
    ) -> Vec<Token> {
        let mut excess = Vec::new();
        if self.handshaking.len() >= HANDSHAKES_MAX {
            self.handshaking
                .retain(|entry| stage(entry.token) == Stage::Handshaking);
            // Some at once: the list is searched the less often.
            let most = HANDSHAKES_MAX / 8 * 7;
            let count = self.handshaking.len().saturating_sub(most);
            excess.extend(self.handshaking.drain(..count).map(|entry| entry.token));
        }
        let turn = self.turn;
        self.handshaking.push_back(Entry { token, turn });
        excess
    }

    /// Takes out the connection to close when another one needs its descriptor: the oldest silent one, else the oldest
    /// that has not completed its handshake.
    pub(super) fn take_oldest(&mut self, stage: impl Fn(Token) -> Stage) -> Oldest {
        let mut result = Oldest::None;
        let lists = [
            (&mut self.silent, Stage::Silent),
            (&mut self.handshaking, Stage::Handshaking),
        ];
        for (list, wanted) in lists {
            while let Some(entry) = list.front().copied() {
                let is_wanted = stage(entry.token) == wanted;
                if is_wanted && entry.turn + TURNS_MIN > self.turn {
                    result = Oldest::TooNew;
                    break;
                }
                list.pop_front();
                if is_wanted {
                    return Oldest::Found(entry.token, wanted);
                }
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_silent_connection_makes_room_first_then_a_handshake() {
        let mut unproven = Unproven::default();
        let stage = |token: Token| match token.0 {
            0..10 => Stage::Silent,
            10..20 => Stage::Handshaking,
            _ => Stage::Done,
        };
        assert_eq!(unproven.take_oldest(stage), Oldest::None);
        for token in [25, 1, 11, 2] {
            unproven.accepted(Token(token), stage);
        }
        for token in [21, 11, 12] {
            let excess = unproven.handshake_begun(Token(token), stage);
            assert!(excess.is_empty());
        }
        for _ in 0..TURNS_MIN {
            assert_eq!(unproven.take_oldest(stage), Oldest::TooNew);
            unproven.next_turn();
        }
        unproven.accepted(Token(3), stage);
        let found = |token, stage| Oldest::Found(Token(token), stage);
        assert_eq!(unproven.take_oldest(stage), found(1, Stage::Silent));
        assert_eq!(unproven.take_oldest(stage), found(2, Stage::Silent));
        // One that is new does not protect an old one of the other list.
        assert_eq!(unproven.take_oldest(stage), found(11, Stage::Handshaking));
        assert_eq!(unproven.take_oldest(stage), found(12, Stage::Handshaking));
        assert_eq!(unproven.take_oldest(stage), Oldest::TooNew);
        for _ in 0..TURNS_MIN {
            unproven.next_turn();
        }
        assert_eq!(unproven.take_oldest(stage), found(3, Stage::Silent));
        assert_eq!(unproven.take_oldest(stage), Oldest::None);
    }

    #[test]
    fn the_lists_forget_connections_that_are_served_or_closed() {
        let mut unproven = Unproven::default();
        for token in 0..100_000 {
            // One in 1,000 stays silent, one in 100 never completes its handshake.
            let stage = |other: Token| match other.0 {
                other if other % 1000 == 0 || other == token => Stage::Silent,
                other if other % 100 == 1 => Stage::Handshaking,
                _ => Stage::Done,
            };
            unproven.accepted(Token(token), stage);
            let excess = unproven.handshake_begun(Token(token), stage);
            assert!(excess.is_empty());
            assert!(unproven.silent.len() <= SEARCHED_MIN);
            assert!(unproven.handshaking.len() <= HANDSHAKES_MAX);
        }
    }

    #[test]
    fn beyond_the_limit_of_handshakes_the_oldest_are_closed() {
        let mut unproven = Unproven::default();
        let stage = |_| Stage::Handshaking;
        for token in 0..HANDSHAKES_MAX {
            let excess = unproven.handshake_begun(Token(token), stage);
            assert!(excess.is_empty());
        }
        let excess = unproven.handshake_begun(Token(HANDSHAKES_MAX), stage);
        let oldest: Vec<Token> = (0..HANDSHAKES_MAX / 8).map(Token).collect();
        assert_eq!(excess, oldest);
    }
}
