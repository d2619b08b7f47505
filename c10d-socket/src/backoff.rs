//! Growing, jittered delays between retries.
//!
//! Knows no clock and no random source: the seed is an argument, and the same seed gives the same
//! delays.

use std::time::Duration;

/// A never-ending sequence of delays: each interval is a factor longer than the one before, up to a
/// maximum, and the delay handed out is drawn evenly from around the interval.
///
/// The jitter keeps a thousand clients that failed together from coming back together.
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
    /// The sequence from its start. Clients that must not march in step need different seeds.
    #[must_use]
    pub fn new(options: BackoffOptions, seed: u64) -> Self {
        Self {
            interval: options.first.min(options.max),
            options,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// The time to wait before the next retry.
    pub fn next_delay(&mut self) -> Duration {
        let interval = self.interval;
        self.interval = scaled(interval, self.options.factor).min(self.options.max);
        let spread = 2.0 * self.random.f64() - 1.0;
        scaled(interval, 1.0 + self.options.jitter * spread)
    }

    /// Starts the intervals over, for use after a success. The jitter goes on and does not repeat.
    pub fn reset(&mut self) {
        self.interval = self.options.first.min(self.options.max);
    }
}

/// How a [`Backoff`] grows.
///
/// ```
/// use c10d_socket::BackoffOptions;
/// use std::time::Duration;
///
/// // What PyTorch's store client does.
/// let like_pytorch = BackoffOptions::default()
///     .with_first(Duration::from_millis(500))
///     .with_max(Duration::from_secs(60));
/// # let _ = like_pytorch;
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BackoffOptions {
    first: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
}

impl BackoffOptions {
    /// The first interval. Default 20 ms: workers start together, so the server usually listens a
    /// moment later, and PyTorch's first wait of 500 ms would be most of the start-up time.
    ///
    /// # Panics
    /// If `first` is zero: the intervals would stay zero and the retries spin.
    #[must_use]
    #[track_caller]
    pub fn with_first(mut self, first: Duration) -> Self {
        assert!(!first.is_zero(), "the first interval must not be zero");
        self.first = first;
        self
    }

    /// How much longer each interval is than the one before. Default 1.5, as PyTorch: gentle enough
    /// that a wait is at most about half as long again as it had to be.
    ///
    /// # Panics
    /// If `factor` is below 1 or not finite.
    #[must_use]
    #[track_caller]
    pub fn with_factor(mut self, factor: f64) -> Self {
        assert!(
            factor.is_finite() && factor >= 1.0,
            "the factor must be finite and at least 1"
        );
        self.factor = factor;
        self
    }

    /// The longest interval; wins over a longer first one. Default 5 s (PyTorch: 60 s): a thousand
    /// waiting clients then cost a server 200 connections a second, and a server that comes back
    /// late is still found within seconds.
    ///
    /// # Panics
    /// If `max` is zero.
    #[must_use]
    #[track_caller]
    pub fn with_max(mut self, max: Duration) -> Self {
        assert!(!max.is_zero(), "the longest interval must not be zero");
        self.max = max;
        self
    }

    /// How far a delay may be from its interval, as a part of it: the delay lies evenly in
    /// `interval * (1 - jitter)` to `interval * (1 + jitter)`. Default 0.5, as PyTorch.
    ///
    /// # Panics
    /// If `jitter` is not within 0 to 1.
    #[must_use]
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

/// `duration * factor`, or the longest duration there is.
fn scaled(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delay_lies_around_its_interval() {
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
    fn the_jitter_uses_its_whole_range() {
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
    fn a_seed_replays_and_seeds_differ() {
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
    fn a_reset_starts_the_intervals_over() {
        let options = BackoffOptions::default().with_jitter(0.0);
        let mut backoff = Backoff::new(options, 3);
        backoff.next_delay();
        backoff.next_delay();
        backoff.reset();
        assert_eq!(backoff.next_delay(), Duration::from_millis(20));
    }
}
