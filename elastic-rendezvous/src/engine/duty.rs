//! Decides whether a node is a standby for a store that has no fixed place.
//!
//! The first nodes of each round are standbys. Before the first round, nodes have no ranks, and later all of the
//! first nodes can be lost at once. In both cases every node that finds no server becomes a standby, until a round
//! has given it a rank.

use std::time::Duration;

use c10d_socket::Silence;

/// How long the store has been without a server when a node considers the standbys lost: longer than a
/// takeover takes.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// The duty of one node.
#[derive(Debug)]
pub(crate) struct Duty {
    candidates_max: usize,
    rank: Option<usize>,
    has_found_leader: bool,
    /// The silence of leaders since a look has found none.
    silence: Option<Silence<Duration>>,
    steps_in: bool,
}

impl Duty {
    pub(crate) const fn new(candidates_max: usize) -> Self {
        Self {
            candidates_max,
            rank: None,
            has_found_leader: false,
            silence: None,
            steps_in: false,
        }
    }

    /// The node has looked who serves the store.
    pub(crate) fn looked(&mut self, is_led: bool, now: Duration) {
        if is_led {
            self.has_found_leader = true;
            self.silence = None;
            return;
        }
        let silence = self.silence.get_or_insert(Silence::new(now, LOST_AFTER));
        self.steps_in |= !self.has_found_leader || silence.is_lost(now);
    }

    /// The node has this rank in a round.
    pub(crate) fn placed(&mut self, rank: usize) {
        self.rank = Some(rank);
        self.steps_in = false;
    }

    pub(crate) fn stands_by(&self) -> bool {
        self.steps_in || self.rank.is_some_and(|rank| rank < self.candidates_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// docs/spec/rendezvous.md, BOOT 11.
    #[test]
    fn the_first_nodes_of_a_round_stand_by() {
        let mut duty = Duty::new(3);
        duty.looked(true, at(0));
        assert!(!duty.stands_by());
        for (rank, stands_by) in [(2, true), (3, false), (0, true)] {
            duty.placed(rank);
            assert_eq!(duty.stands_by(), stands_by, "{rank}");
        }
    }

    #[test]
    fn whoever_finds_nobody_at_first_stands_by_until_a_round_places_it() {
        let mut duty = Duty::new(1);
        duty.looked(false, at(0));
        assert!(duty.stands_by());
        duty.looked(true, at(1));
        assert!(duty.stands_by());
        duty.placed(1);
        assert!(!duty.stands_by());
    }

    #[test]
    fn others_step_in_when_no_candidate_has_taken_over() {
        let mut duty = Duty::new(1);
        duty.looked(true, at(0));
        duty.placed(7);
        duty.looked(false, at(10));
        duty.looked(false, at(14));
        assert!(!duty.stands_by());
        // A takeover between two checks restarts the wait.
        duty.looked(true, at(14));
        duty.looked(false, at(16));
        assert!(!duty.stands_by());
        duty.looked(false, at(21));
        assert!(duty.stands_by());
    }
}
