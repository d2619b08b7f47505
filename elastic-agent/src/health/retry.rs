//! When a failed health check is repeated. Pure.

use std::time::Duration;

/// The pause after the first failure, which doubles with each further one, and its limit. Many faults, such as a file
/// system that is not mounted yet, are gone after seconds; a broken device should not be asked all the time.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// A pause is shorter by up to this share, so that nodes with a common fault do not check at the same moment.
const JITTER: f64 = 0.25;

/// The failures in a row of one node.
#[derive(Debug)]
pub(crate) struct Retry {
    failures: u32,
    random: fastrand::Rng,
}

impl Retry {
    /// No failure yet. `seed` determines the jitter.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            failures: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Counts a failure, and returns the pause until the next check.
    pub(crate) fn after_failure(&mut self) -> Duration {
        let doublings = self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let longest = PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX);
        longest.mul_f64(1.0 - JITTER * self.random.f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        for seed in 0..100 {
            let mut retry = Retry::new(seed);
            for longest in [10, 20, 40, 80, 160, 300, 300] {
                let pause = retry.after_failure().as_secs_f64();
                let longest = f64::from(longest);
                assert!(
                    (longest * (1.0 - JITTER)..=longest).contains(&pause),
                    "seed {seed}: {pause} of {longest}"
                );
            }
        }
    }

    #[test]
    fn the_pause_stays_limited_after_any_number_of_failures() {
        let mut retry = Retry::new(0);
        retry.failures = u32::MAX;
        assert!(retry.after_failure() <= PAUSE_MAX);
        assert!(retry.after_failure() <= PAUSE_MAX);
    }

    #[test]
    fn a_seed_determines_the_pauses_and_nodes_differ() {
        let pause = |seed| Retry::new(seed).after_failure();
        assert_eq!(pause(7), pause(7));
        assert_ne!(pause(7), pause(8));
    }
}
