//! Which random histories a test runs, and the seed that repeats one.

use std::env;
use std::thread;

use crate::quiet::{is_quiet, print};

/// Fresh seeds begin below this number, so that they are easy to copy.
const FRESH_MAX: u64 = 1 << 48;

/// The seeds of a test's random histories. If the test panics, the seed of the current history is printed.
///
/// The variable `SEED` repeats the history of one seed. `ROUNDS=n` runs n histories from a fresh seed on, or from `SEED` on.
#[derive(Debug)]
pub struct Seeds {
    current: Option<u64>,
    next: u64,
    left: u64,
    is_replay: bool,
}

impl Seeds {
    /// The seeds from 0 to `count`, so that all runs of the test have the same histories.
    #[must_use]
    pub fn fixed(count: u64) -> Self {
        Self::given().unwrap_or_else(|| Self::new(0, count, false))
    }

    /// Fresh seeds, so that each run of the test has `count` other histories. The first seed is printed.
    #[must_use]
    pub fn fresh(count: u64) -> Self {
        let fresh = || {
            let first = fastrand::u64(..FRESH_MAX);
            print(&format!("SEED={first}, {count} histories"));
            Self::new(first, count, false)
        };
        Self::given().unwrap_or_else(fresh)
    }

    /// The seeds that `SEED` and `ROUNDS` choose, if one of them is set.
    #[must_use]
    pub fn given() -> Option<Self> {
        let seeds = Self::chosen(number("SEED"), number("ROUNDS"))?;
        print(&format!("SEED={}, {} histories", seeds.next, seeds.left));
        Some(seeds)
    }

    fn chosen(seed: Option<u64>, rounds: Option<u64>) -> Option<Self> {
        match (seed, rounds) {
            (None, None) => None,
            (Some(seed), None) => Some(Self::new(seed, 1, true)),
            (seed, Some(rounds)) => {
                let first = seed.unwrap_or_else(|| fastrand::u64(..FRESH_MAX));
                Some(Self::new(first, rounds, false))
            }
        }
    }

    const fn new(first: u64, count: u64, is_replay: bool) -> Self {
        Self {
            current: None,
            next: first,
            left: count,
            is_replay,
        }
    }

    /// Whether a single history is repeated, so that a count over all histories means nothing.
    #[must_use]
    pub const fn is_replay(&self) -> bool {
        self.is_replay
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.current = Some(self.next);
        self.next = self.next.wrapping_add(1);
        self.current
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).ok();
        (left.unwrap_or(usize::MAX), left)
    }
}

impl ExactSizeIterator for Seeds {}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(seed) = self.current.filter(|_| thread::panicking()) {
            print(&format!("to repeat this history: SEED={seed}"));
        }
    }
}

/// The seed of a test that has a single history: `SEED`, or a fresh one. It is printed.
#[must_use]
pub fn seed() -> u64 {
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..FRESH_MAX));
    print(&format!("to repeat this test: SEED={seed}"));
    seed
}

/// Whether a person repeats a single history, and wants to see all of it.
#[must_use]
pub fn is_replay() -> bool {
    env::var_os("SEED").is_some() && env::var_os("ROUNDS").is_none() && !is_quiet()
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} must be a number, and is {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::{FRESH_MAX, Seeds};

    #[test]
    fn variables_choose_the_histories() {
        let chosen = |seed, rounds| Seeds::chosen(seed, rounds).map(Vec::from_iter);
        assert_eq!(chosen(None, None), None);
        assert_eq!(chosen(Some(7), None).as_deref(), Some(&[7][..]));
        let both = chosen(Some(u64::MAX), Some(2));
        assert_eq!(both.as_deref(), Some(&[u64::MAX, 0][..]));
        let fresh = chosen(None, Some(2)).expect("two histories");
        assert!(fresh[0] < FRESH_MAX && fresh[1] == fresh[0] + 1);
    }

    #[test]
    fn only_one_seed_is_a_replay() {
        let is_replay = |seed, rounds| Seeds::chosen(seed, rounds).is_some_and(|it| it.is_replay());
        assert!(is_replay(Some(7), None));
        assert!(!is_replay(Some(7), Some(1)) && !is_replay(None, Some(1)));
    }
}
