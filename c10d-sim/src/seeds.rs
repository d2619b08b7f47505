//! Which random histories a test runs, and the seed that repeats one.

use std::env;
use std::thread;

use crate::quiet::print;

/// The least seeds of a run are below this number, so that they are easy to copy.
const FRESH_MAX: u64 = 1 << 48;

/// The seeds of a test's random histories.
///
/// The variable `SEED` repeats the history of one seed. `ROUNDS=n` runs n histories from fresh seeds on, or from `SEED` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    first: u64,
    count: u64,
    is_replay: bool,
}

impl Seeds {
    /// The seeds from 0 to `count`, the same ones in each run of the test.
    #[must_use]
    pub fn fixed(count: u64) -> Self {
        Self::new(number("SEED"), number("ROUNDS"), Some(0), count)
    }

    /// This number of seeds, other ones in each run of the test.
    #[must_use]
    pub fn fresh(count: u64) -> Self {
        Self::new(number("SEED"), number("ROUNDS"), None, count)
    }

    fn new(seed: Option<u64>, rounds: Option<u64>, usual: Option<u64>, count: u64) -> Self {
        let usual = usual.filter(|_| rounds.is_none());
        let is_replay = seed.is_some() && rounds.is_none();
        Self {
            first: seed.or(usual).unwrap_or_else(|| fastrand::u64(..FRESH_MAX)),
            count: if is_replay {
                1
            } else {
                rounds.unwrap_or(count)
            },
            is_replay,
        }
    }

    /// Whether only one history is repeated, so that there is nothing to count.
    #[must_use]
    pub const fn is_replay(self) -> bool {
        self.is_replay
    }

    /// The number of histories.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Runs the history of each seed. If it panics, the seed is printed.
    pub fn run(self, mut history: impl FnMut(u64)) {
        if self.first != 0 {
            print(&format!("SEED={}, {} histories", self.first, self.count));
        }
        for round in 0..self.count {
            let seed = Printed(self.first.wrapping_add(round));
            history(seed.0);
        }
    }
}

/// The seed of a test that has a single history: `SEED`, or a fresh one. It is printed.
#[must_use]
pub fn seed() -> u64 {
    let Seeds { first, .. } = Seeds::fresh(1);
    print(&format!("to repeat this history: SEED={first}"));
    first
}

/// Whether a single history is repeated, for a person who wants to see all of it.
#[must_use]
pub fn is_replay() -> bool {
    Seeds::fixed(1).is_replay
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} must be a number, and is {text:?}")))
}

/// A seed that is printed by a panic.
struct Printed(u64);

impl Drop for Printed {
    fn drop(&mut self) {
        if thread::panicking() {
            print(&format!("to repeat this history: SEED={}", self.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FRESH_MAX, Seeds};

    fn seeds(seeds: Seeds) -> Vec<u64> {
        let mut all = Vec::new();
        seeds.run(|seed| all.push(seed));
        all
    }

    #[test]
    fn variables_choose_the_histories() {
        let fixed = |seed, rounds| seeds(Seeds::new(seed, rounds, Some(0), 3));
        assert_eq!(fixed(None, None), [0, 1, 2]);
        assert_eq!(fixed(Some(7), None), [7]);
        assert_eq!(fixed(Some(u64::MAX), Some(2)), [u64::MAX, 0]);
        let fresh = fixed(None, Some(2));
        assert!(fresh[0] < FRESH_MAX && fresh[1] == fresh[0] + 1);
        assert_eq!(seeds(Seeds::new(None, None, None, 4)).len(), 4);
    }

    #[test]
    fn only_one_seed_is_a_replay() {
        let is_replay = |seed, rounds| Seeds::new(seed, rounds, Some(0), 3).is_replay();
        assert!(is_replay(Some(7), None));
        assert!(!is_replay(Some(7), Some(1)) && !is_replay(None, None));
    }
}
