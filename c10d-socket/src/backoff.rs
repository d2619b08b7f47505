//! Exponential backoff with jitter.
//!
//! Pure: the seed is an argument, and the same seed gives the same delays.

use std::time::Duration;

/// An endless sequence of retry delays with exponential backoff and jitter.
///
/// Each interval is a factor longer than the previous one, up to a maximum. A delay is drawn
/// uniformly from a range around the interval, so that a thousand clients that failed together do
/// not retry together.
///
/// ```
/// use c10d_socket::{Backoff, BackoffOptions};
/// use std::time::Duration;
///
/// let options = BackoffOptions::default().with_jitter(0.0);
/// let mut backoff = Backoff::new(options, 7);
/// assert_eq!(backoff.next_delay(), Duration::from_millis(20));
/// assert_eq!(backoff.next_delay(), Duration::from_millis(30));
/// ```
#[derive(Debug, Clone)]
pub struct Backoff {
    options: BackoffOptions,
    interval: Duration,
    random: fastrand::Rng,
}

impl Backoff {
    /// Starts a sequence. Give each client a different seed.
    #[must_use]
    pub fn new(options: BackoffOptions, seed: u64) -> Self {
        Self {
            interval: options.first.min(options.max),
            options,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns the delay before the next retry.
    pub fn next_delay(&mut self) -> Duration {
        let interval = self.interval;
        self.interval = scaled(interval, self.options.factor).min(self.options.max);
        let spread = 2.0 * self.random.f64() - 1.0;
        scaled(interval, 1.0 + self.options.jitter * spread)
    }

    /// Starts again at the first interval, for use after a success. The jitter does not repeat.
    pub fn reset(&mut self) {
        self.interval = self.options.first.min(self.options.max);
    }
}

/// The intervals and the jitter of a [`Backoff`].
///
/// ```
/// use c10d_socket::BackoffOptions;
/// use std::time::Duration;
///
/// // As PyTorch's store client.
/// let like_pytorch = BackoffOptions::default()
///     .with_first(Duration::from_millis(500))
///     .with_max(Duration::from_secs(60));
/// # let _ = like_pytorch;
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct BackoffOptions {
    first: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
}

impl BackoffOptions {
    /// Sets the first interval. Default 20 ms: workers start together, so the server usually listens soon, and
    /// PyTorch's first wait of 500 ms would dominate the start-up time.
    ///
    /// # Panics
    /// If `first` is zero: the intervals would stay zero and the retries spin.
    #[track_caller]
    pub fn with_first(mut self, first: Duration) -> Self {
        assert!(!first.is_zero(), "the first interval must not be zero");
        self.first = first;
        self
    }

    /// Sets the factor from one interval to the next. Default 1.5, like PyTorch: a client then connects at most about
    /// 50 % later than it could have.
    ///
    /// # Panics
    /// If `factor` is below 1 or not finite.
    #[track_caller]
    pub fn with_factor(mut self, factor: f64) -> Self {
        assert!(
            factor.is_finite() && factor >= 1.0,
            "the factor must be finite and at least 1"
        );
        self.factor = factor;
        self
    }

    /// Sets the longest interval; also caps the first one. Default 5 s (PyTorch: 60 s): a thousand waiting clients
    /// then make 200 connection attempts a second, and find a server that starts late within seconds.
    ///
    /// # Panics
    /// If `max` is zero.
    #[track_caller]
    pub fn with_max(mut self, max: Duration) -> Self {
        assert!(!max.is_zero(), "the longest interval must not be zero");
        self.max = max;
        self
    }

    /// Sets the jitter, as a fraction of the interval: a delay is uniform in `interval * (1 - jitter)` to
    /// `interval * (1 + jitter)`. Default 0.5, like PyTorch.
    ///
    /// # Panics
    /// If `jitter` is not within 0 to 1.
    #[track_caller]
    pub fn with_jitter(mut self, jitter: f64) -> Self {
        assert!(
            (0.0..=1.0).contains(&jitter),
            "the jitter must be within 0 to 1"
        );
        self.jitter = jitter;
        self
    }
}

impl Default for BackoffOptions {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(20),
            factor: 1.5,
            max: Duration::from_secs(5),
            jitter: 0.5,
        }
    }
}

/// `duration * factor`, at most [`Duration::MAX`].
fn scaled(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_within_the_jitter_range() {
        for seed in 0..200 {
            let mut backoff = Backoff::new(BackoffOptions::default(), seed);
            let mut interval = 0.020_f64;
            for step in 0..40 {
                let delay = backoff.next_delay().as_secs_f64();
                assert!(
                    delay >= interval * 0.499 && delay <= interval * 1.501,
                    "seed {seed}, step {step}: {delay} is not around {interval}"
                );
                interval = (interval * 1.5).min(5.0);
            }
        }
    }

    #[test]
    fn jitter_covers_its_whole_range() {
        let options = BackoffOptions::default().with_factor(1.0);
        let seed = 42;
        let mut backoff = Backoff::new(options, seed);
        let delays: Vec<f64> = (0..1000)
            .map(|_| backoff.next_delay().as_secs_f64() / 0.020)
            .collect();
        let mean = delays.iter().sum::<f64>() / 1000.0;
        assert!(delays.iter().any(|delay| *delay < 0.55), "seed {seed}");
        assert!(delays.iter().any(|delay| *delay > 1.45), "seed {seed}");
        assert!((0.95..1.05).contains(&mean), "seed {seed}: mean {mean}");
    }

    #[test]
    fn same_seed_gives_the_same_delays() {
        let first = |seed| Backoff::new(BackoffOptions::default(), seed).next_delay();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }

    #[test]
    fn extreme_options_do_not_overflow() {
        let options = BackoffOptions::default()
            .with_first(Duration::MAX)
            .with_max(Duration::MAX)
            .with_factor(f64::MAX)
            .with_jitter(1.0);
        let mut backoff = Backoff::new(options, 3);
        for _ in 0..10 {
            backoff.next_delay();
        }
    }

    #[test]
    fn reset_restarts_the_intervals() {
        let options = BackoffOptions::default().with_jitter(0.0);
        let mut backoff = Backoff::new(options, 3);
        backoff.next_delay();
        backoff.next_delay();
        backoff.reset();
        assert_eq!(backoff.next_delay(), Duration::from_millis(20));
    }
}
