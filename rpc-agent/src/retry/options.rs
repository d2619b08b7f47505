//! How often, when, and after which errors a call is retried.

use std::time::Duration;

use super::group::RetryGroup;
use crate::milliseconds::milliseconds;

/// How often, when, and after which errors a call is retried.
///
/// Retries are *at least once*: when an answer is lost, the function has run, and runs again. Retry only
/// functions that may run twice.
///
/// Each call checks its options, as in PyTorch.
///
/// ```
/// use rpc_agent::RetryOptions;
/// use std::time::Duration;
///
/// let patient = RetryOptions::default()
///     .with_max_retries(20)
///     .with_max_delay(Duration::from_secs(30));
/// assert!(patient.validate().is_ok());
///
/// let wrong = RetryOptions::default().with_max_retries(-1);
/// assert_eq!(wrong.validate().unwrap_err().to_string(), "maxRetries cannot be negative.");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct RetryOptions {
    max_retries: i64,
    retry_duration_ms: i64,
    backoff: f64,
    max_delay: Duration,
    total_time_max: Duration,
    jitter: f64,
    attempt_timeout: Option<Duration>,
    measured_timeout_min: Option<Duration>,
    timeout: Duration,
    retry_executed: bool,
    group: Option<RetryGroup>,
}

impl RetryOptions {
    /// The limit of retries; 0: one attempt only. Default 3, as in the first PyTorch with retries (later 5):
    /// with the other defaults a call to a worker that refuses connections fails within five seconds.
    pub fn with_max_retries(mut self, max_retries: i64) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// The pause between the first failure and the first retry, rounded up to whole milliseconds. Default
    /// 1 s, as in PyTorch, about the time that a peer takes to restart.
    pub fn with_retry_duration(self, pause: Duration) -> Self {
        self.with_retry_duration_ms(i64::try_from(milliseconds(pause)).unwrap_or(i64::MAX))
    }

    /// [`RetryOptions::with_retry_duration`], in milliseconds.
    pub fn with_retry_duration_ms(mut self, pause_ms: i64) -> Self {
        self.retry_duration_ms = pause_ms;
        self
    }

    /// The factor from one pause to the next. Default 1.5, as in PyTorch: the pauses are 1000, 1500, 2250,
    /// 3375, 5062 ms. (PyTorch counts them from the sending and has the first one twice.)
    pub fn with_backoff(mut self, factor: f64) -> Self {
        self.backoff = factor;
        self
    }

    /// The longest pause, jitter included. Default [`Duration::MAX`], as few retries keep pauses short.
    pub fn with_max_delay(mut self, max: Duration) -> Self {
        self.max_delay = max;
        self
    }

    /// How long after the call began a retry may still begin. An attempt that began in time continues.
    /// Default [`Duration::MAX`]: only the number of retries is limited.
    pub fn with_total_time_max(mut self, max: Duration) -> Self {
        self.total_time_max = max;
        self
    }

    /// By which fraction a pause may be shorter or longer, drawn evenly. Default 0. Use some where many
    /// workers lose the same peer, so that they do not all reconnect at once.
    pub fn with_jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// How long an attempt waits for its answer, more than zero; `None`: indefinitely. Default 10 s: with the
    /// 60 s of a call without retries, one lost answer would cost a minute, as it does in PyTorch.
    pub fn with_attempt_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.attempt_timeout = timeout.into();
        self
    }

    /// Has an attempt wait about as long as the worker takes to answer, as TCP does before it sends a packet again: a
    /// lost message is repeated soon, and a slow worker is not flooded with repetitions.
    ///
    /// The first attempt waits for the smoothed round trip of the group's calls to this worker and four times its
    /// variation (1 s before the first answer, and without [`RetryOptions::with_group`]), but at least for `min`; after
    /// each attempt that times out, the next waits twice as long.
    /// [`RetryOptions::with_attempt_timeout`] is the longest. Default: each attempt waits for that long, as the
    /// functions of a group may take different times. For short functions that always answer at once.
    pub fn with_measured_timeout(mut self, min: Duration) -> Self {
        self.measured_timeout_min = Some(min);
        self
    }

    /// How long the call takes at most, all attempts included: the last one is cut. Default [`Duration::MAX`].
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether permanent errors are retried too: the function's own errors, an unknown function or worker.
    /// Default no: they end the call at once.
    pub fn retry_executed(mut self, is_wanted: bool) -> Self {
        self.retry_executed = is_wanted;
        self
    }

    /// Puts the call into a group, whose calls can be abandoned together. Default: in no group, only the
    /// options above and the agent's shutdown end the call.
    pub fn with_group(mut self, group: &RetryGroup) -> Self {
        self.group = Some(group.clone());
        self
    }

    pub(crate) const fn group(&self) -> Option<&RetryGroup> {
        self.group.as_ref()
    }

    /// Checks the options, as each call that uses them does.
    ///
    /// # Errors
    /// [`RetryOptionsError`]: the first three in PyTorch's order and words.
    pub fn validate(&self) -> Result<(), RetryOptionsError> {
        self.checked().map(drop)
    }

    /// The checked options.
    pub(crate) fn checked(&self) -> Result<RetryPolicy, RetryOptionsError> {
        if self.max_retries < 0 {
            return Err(RetryOptionsError::MaxRetries {
                max_retries: self.max_retries,
            });
        }
        if self.backoff < 1.0 {
            return Err(RetryOptionsError::Backoff {
                backoff: self.backoff,
            });
        }
        let Ok(retry_duration_ms) = u64::try_from(self.retry_duration_ms) else {
            return Err(RetryOptionsError::RetryDuration {
                retry_duration_ms: self.retry_duration_ms,
            });
        };
        if !self.backoff.is_finite() {
            return Err(RetryOptionsError::BackoffNotFinite {
                backoff: self.backoff,
            });
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(RetryOptionsError::Jitter {
                jitter: self.jitter,
            });
        }
        if self.attempt_timeout == Some(Duration::ZERO) {
            return Err(RetryOptionsError::AttemptTimeout);
        }
        if self.timeout.is_zero() {
            return Err(RetryOptionsError::Timeout);
        }
        Ok(RetryPolicy {
            max_retries: u32::try_from(self.max_retries).unwrap_or(u32::MAX),
            retry_duration: Duration::from_millis(retry_duration_ms),
            backoff: self.backoff,
            max_delay: self.max_delay,
            total_time_max: self.total_time_max,
            jitter: self.jitter,
            attempt_timeout: self.attempt_timeout,
            measured_timeout_min: self.measured_timeout_min,
            timeout: self.timeout,
            retry_executed: self.retry_executed,
        })
    }
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            max_retries: 3,
            retry_duration_ms: 1000,
            backoff: 1.5,
            max_delay: Duration::MAX,
            total_time_max: Duration::MAX,
            jitter: 0.0,
            attempt_timeout: Some(Duration::from_secs(10)),
            measured_timeout_min: None,
            timeout: Duration::MAX,
            retry_executed: false,
            group: None,
        }
    }
}

/// [`RetryOptions`] that have been checked.
#[derive(Debug, Clone)]
pub(crate) struct RetryPolicy {
    pub(crate) max_retries: u32,
    pub(crate) retry_duration: Duration,
    /// Finite and at least 1.
    pub(crate) backoff: f64,
    pub(crate) max_delay: Duration,
    pub(crate) total_time_max: Duration,
    /// 0 to 1.
    pub(crate) jitter: f64,
    /// Not zero; `None` for no limit.
    pub(crate) attempt_timeout: Option<Duration>,
    /// `None`: each attempt has `attempt_timeout`.
    pub(crate) measured_timeout_min: Option<Duration>,
    /// Not zero.
    pub(crate) timeout: Duration,
    pub(crate) retry_executed: bool,
}

/// Invalid [`RetryOptions`].
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RetryOptionsError {
    /// The number of retries is negative.
    #[error("maxRetries cannot be negative.")]
    MaxRetries {
        /// The value given.
        max_retries: i64,
    },
    /// The backoff factor is below 1. PyTorch's text names the wrong option.
    #[error("maxRetries cannot be exponentially decaying.")]
    Backoff {
        /// The value given.
        backoff: f64,
    },
    /// The pause is negative.
    #[error("rpcRetryDuration cannot be negative.")]
    RetryDuration {
        /// The value given.
        retry_duration_ms: i64,
    },
    /// The backoff factor is infinite or not a number.
    #[error("retryBackoff must be finite, but is {backoff}")]
    BackoffNotFinite {
        /// The value given.
        backoff: f64,
    },
    /// The jitter is not within 0 to 1.
    #[error("the jitter must be within 0 to 1, but is {jitter}")]
    Jitter {
        /// The value given.
        jitter: f64,
    },
    /// The timeout of an attempt is zero.
    #[error("the timeout of an attempt must not be zero")]
    AttemptTimeout,
    /// The timeout of the call is zero.
    #[error("the timeout of a call with retries must not be zero")]
    Timeout,
}

debug_as_display!(RetryOptionsError);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn refusal(options: &RetryOptions) -> String {
        options.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_those_of_the_first_pytorch_with_retries() {
        let policy = RetryOptions::default().checked().unwrap();
        assert_eq!(policy.max_retries, 3);
        assert_eq!(policy.retry_duration, Duration::from_millis(1000));
        assert_eq!(policy.backoff, 1.5);
        assert_eq!(policy.jitter, 0.0);
        assert_eq!(policy.attempt_timeout, Some(Duration::from_secs(10)));
        assert!(!policy.retry_executed);
    }

    #[test]
    fn options_are_refused_in_the_order_and_with_the_texts_of_pytorch() {
        let mut options = RetryOptions::default()
            .with_max_retries(-1)
            .with_backoff(0.99)
            .with_retry_duration_ms(-1)
            .with_jitter(1.5);
        assert_eq!(refusal(&options), "maxRetries cannot be negative.");
        options = options.with_max_retries(0);
        assert_eq!(
            refusal(&options),
            "maxRetries cannot be exponentially decaying."
        );
        options = options.with_backoff(1.0);
        assert_eq!(refusal(&options), "rpcRetryDuration cannot be negative.");
        options = options.with_retry_duration_ms(0);
        assert_eq!(
            refusal(&options),
            "the jitter must be within 0 to 1, but is 1.5"
        );
        options = options.with_jitter(1.0);
        assert_eq!(options.validate(), Ok(()));
    }

    #[test]
    fn infinite_and_undefined_numbers_are_refused() {
        for backoff in [f64::NAN, f64::INFINITY] {
            let options = RetryOptions::default().with_backoff(backoff);
            assert!(refusal(&options).starts_with("retryBackoff must be finite"));
        }
        let options = RetryOptions::default().with_jitter(f64::NAN);
        assert!(refusal(&options).starts_with("the jitter must be"));
    }

    #[test]
    fn a_zero_timeout_is_refused() {
        let options = RetryOptions::default().with_timeout(Duration::ZERO);
        assert_eq!(options.validate(), Err(RetryOptionsError::Timeout));
        let options = RetryOptions::default().with_attempt_timeout(Duration::ZERO);
        assert_eq!(options.validate(), Err(RetryOptionsError::AttemptTimeout));
    }

    #[test]
    fn pauses_round_up_to_milliseconds_and_nothing_overflows() {
        let pause = |pause| {
            let policy = RetryOptions::default().with_retry_duration(pause).checked();
            policy.unwrap().retry_duration
        };
        assert_eq!(pause(Duration::ZERO), Duration::ZERO);
        assert_eq!(pause(Duration::from_nanos(1)), Duration::from_millis(1));
        assert_eq!(pause(Duration::from_millis(7)), Duration::from_millis(7));
        assert_eq!(pause(Duration::MAX), Duration::from_millis(i64::MAX as u64));
        let many = RetryOptions::default().with_max_retries(i64::MAX);
        assert_eq!(many.checked().unwrap().max_retries, u32::MAX);
    }
}
