//! Connections that have not proved that they may be served. They make room for other connections, the oldest first.
//!
//! Pure: the caller passes the stage of each connection.

use std::collections::VecDeque;

/// A list with fewer entries is not searched for those that have proved themselves.
const SEARCHED_MIN: usize = 1024;

/// Turns of the event loop that a connection has before it makes room: one in which what it has sent is read, and one
/// in which its next message is. A turn is the longer the more peers there are to answer.
const TURNS_MIN: u64 = 2;

/// The stage of a connection on its way to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The connection has sent nothing.
    Silent,
    /// The connection has begun a handshake.
    Handshaking,
    /// The connection is served, or already refused.
    Served,
    /// The connection is no longer open.
    Closed,
}

/// The connection that makes room next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Oldest<K> {
    /// This one, which is no longer in the lists.
    Found(K, Stage),
    /// There are only some that have had no time to prove themselves.
    TooNew,
    None,
}

#[derive(Debug, Clone, Copy)]
struct Entry<K> {
    key: K,
    /// The turn in which it was accepted, or has begun its handshake.
    turn: u64,
}

#[derive(Debug)]
pub(super) struct Unproven<K> {
    turn: u64,
    /// Accepted connections, in this order; some have sent something since.
    silent: VecDeque<Entry<K>>,
    /// Connections that have begun a handshake, in this order; some have completed it.
    handshaking: VecDeque<Entry<K>>,
    /// The length of `silent` at which it is searched for those that have sent something.
    search_silent_at: usize,
    handshakes_max: usize,
}

impl<K: Copy> Unproven<K> {
    pub(super) const fn new(handshakes_max: usize) -> Self {
        Self {
            turn: 0,
            silent: VecDeque::new(),
            handshaking: VecDeque::new(),
            search_silent_at: 0,
            handshakes_max,
        }
    }

    pub(super) fn next_turn(&mut self) {
        self.turn += 1;
    }

    /// A connection was accepted.
    pub(super) fn accepted(&mut self, key: K, stage: impl Fn(K) -> Stage) {
        if self.silent.len() >= self.search_silent_at.max(SEARCHED_MIN) {
            self.silent
                .retain(|entry| stage(entry.key) == Stage::Silent);
            self.search_silent_at = 2 * self.silent.len();
        }
        let turn = self.turn;
        self.silent.push_back(Entry { key, turn });
    }

    /// A connection begins a handshake. Returns the oldest of the other connections if there are too many.
    pub(super) fn handshake_begun(&mut self, key: K, stage: impl Fn(K) -> Stage) -> Vec<K> {
        let mut excess = Vec::new();
        if self.handshaking.len() >= self.handshakes_max {
            self.handshaking
                .retain(|entry| stage(entry.key) == Stage::Handshaking);
            // Some at once: the list is searched the less often.
            let most = self.handshakes_max / 8 * 7;
            let count = self.handshaking.len().saturating_sub(most);
            excess.extend(self.handshaking.drain(..count).map(|entry| entry.key));
        }
        let turn = self.turn;
        self.handshaking.push_back(Entry { key, turn });
        excess
    }

    /// Takes out the connection to close when another connection needs its descriptor: the oldest silent connection,
    /// or otherwise the oldest that has not completed its handshake.
    pub(super) fn take_oldest(&mut self, stage: impl Fn(K) -> Stage) -> Oldest<K> {
        let mut result = Oldest::None;
        let lists = [
            (&mut self.silent, Stage::Silent),
            (&mut self.handshaking, Stage::Handshaking),
        ];
        for (list, wanted) in lists {
            while let Some(entry) = list.front().copied() {
                let is_wanted = stage(entry.key) == wanted;
                if is_wanted && entry.turn + TURNS_MIN > self.turn {
                    result = Oldest::TooNew;
                    break;
                }
                list.pop_front();
                if is_wanted {
                    return Oldest::Found(entry.key, wanted);
                }
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDSHAKES_MAX: usize = 8192;

    #[test]
    fn the_oldest_silent_connection_makes_room_first_then_a_handshake() {
        let mut unproven = Unproven::new(HANDSHAKES_MAX);
        let stage = |key: u32| match key {
            0..10 => Stage::Silent,
            10..20 => Stage::Handshaking,
            _ => Stage::Served,
        };
        assert_eq!(unproven.take_oldest(stage), Oldest::None);
        for key in [25, 1, 11, 2] {
            unproven.accepted(key, stage);
        }
        for key in [21, 11, 12] {
            let excess = unproven.handshake_begun(key, stage);
            assert!(excess.is_empty());
        }
        for _ in 0..TURNS_MIN {
            assert_eq!(unproven.take_oldest(stage), Oldest::TooNew);
            unproven.next_turn();
        }
        unproven.accepted(3, stage);
        let found = |key, stage| Oldest::Found(key, stage);
        assert_eq!(unproven.take_oldest(stage), found(1, Stage::Silent));
        assert_eq!(unproven.take_oldest(stage), found(2, Stage::Silent));
        // A new connection does not protect an old connection of the other list.
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
        let mut unproven = Unproven::new(HANDSHAKES_MAX);
        for key in 0..100_000 {
            // One in 1,000 stays silent, one in 100 never completes its handshake.
            let stage = |other: u32| match other {
                other if other % 1000 == 0 || other == key => Stage::Silent,
                other if other % 100 == 1 => Stage::Handshaking,
                _ => Stage::Served,
            };
            unproven.accepted(key, stage);
            let excess = unproven.handshake_begun(key, stage);
            assert!(excess.is_empty());
            assert!(unproven.silent.len() <= SEARCHED_MIN);
            assert!(unproven.handshaking.len() <= HANDSHAKES_MAX);
        }
    }

    #[test]
    fn beyond_the_limit_of_handshakes_the_oldest_are_closed() {
        let mut unproven = Unproven::new(HANDSHAKES_MAX);
        let stage = |_| Stage::Handshaking;
        for key in 0..HANDSHAKES_MAX as u32 {
            let excess = unproven.handshake_begun(key, stage);
            assert!(excess.is_empty());
        }
        let excess = unproven.handshake_begun(HANDSHAKES_MAX as u32, stage);
        let oldest: Vec<u32> = (0..HANDSHAKES_MAX as u32 / 8).collect();
        assert_eq!(excess, oldest);
    }
}
