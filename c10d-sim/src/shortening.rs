//! Delta debugging: a failing sequence loses pieces, while it still fails.

use std::time::{Duration, Instant};

/// How often a sequence is tried at most, and for how long: the seed of the history is printed afterwards.
const TRIES_MAX: usize = 1_000;
const TIME_MAX: Duration = Duration::from_secs(10);

/// Removes pieces, first long ones, for which the rest still fails.
pub(crate) fn shortened<S: Copy>(mut steps: Vec<S>, fails: impl Fn(&[S]) -> bool) -> Vec<S> {
    let started = Instant::now();
    let may_try = |tries| tries < TRIES_MAX && started.elapsed() < TIME_MAX;
    let mut tries = 0;
    let mut piece = steps.len();
    while piece > 0 {
        let mut at = 0;
        let before = steps.len();
        while at < steps.len() && may_try(tries) {
            let end = steps.len().min(at + piece);
            let rest = [&steps[..at], &steps[end..]].concat();
            tries += 1;
            if fails(&rest) {
                steps = rest;
            } else {
                at = end;
            }
        }
        // An earlier piece may be needless now that a piece behind it is removed.
        let is_last = piece == 1 && steps.len() == before;
        if is_last || !may_try(tries) {
            break;
        }
        piece = (piece / 2).max(1);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn only_the_steps_that_are_needed_remain() {
        let all: Vec<u32> = (0..200).collect();
        let needed = |steps: &[u32]| [3, 77, 150].iter().all(|it| steps.contains(it));
        assert_eq!(shortened(all, needed), [3, 77, 150]);
    }

    /// Each step can be removed only after the step behind it.
    #[test]
    fn steps_that_become_needless_are_removed_too() {
        let all: Vec<u32> = (0..20).collect();
        let is_prefix = |steps: &[u32]| (0..steps.len() as u32).eq(steps.iter().copied());
        assert_eq!(shortened(all, is_prefix), []);
    }

    #[test]
    fn the_tries_are_limited() {
        let all: Vec<u32> = (0..10_000).collect();
        let count = |steps: &[u32]| steps.iter().filter(|it| **it % 2 == 0).count() >= 5_000;
        assert!(shortened(all, count).len() >= 5_000);
    }
}
