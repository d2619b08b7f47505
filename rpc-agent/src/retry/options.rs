//! Options of retries: how often, when, and after which errors a call is retried.

use std::time::Duration;

use super::group::RetryGroup;
use crate::clock::milliseconds;

/// The options of retries: how often, when, and after which errors a call is retried.
///
/// Retries are *at least once*: when an answer is lost, the function has run, and runs again. Retry only
/// functions that may run twice.
///
/// Each call checks its options, like in PyTorch.
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
/// let wrong = RetryOptions::default().with_jitter(2.0);
/// assert!(wrong.validate().is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct RetryOptions {
    pub(super) max_retries: u32,
    /// The first pause in whole milliseconds.
    pub(super) retry_duration: Duration,
    pub(super) backoff: f64,
    pub(super) max_delay: Duration,
    pub(super) jitter: f64,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) measured_timeout_min: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) retry_executed: bool,
    pub(crate) group: Option<RetryGroup>,
}

impl RetryOptions {
    /// Sets the limit of retries; 0 means one attempt only. Default 3, like the first PyTorch with retries (later 5):
    /// with the other defaults a call to a worker that refuses connections fails within five seconds.
    pub fn with_max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// Sets the pause between the first failure and the first retry, rounded up to whole milliseconds. Default 1 s,
    /// like PyTorch, about the time that a peer takes to restart.
    pub fn with_retry_duration(mut self, pause: Duration) -> Self {
        self.retry_duration = Duration::from_millis(milliseconds(pause));
        self
    }

    /// Sets the factor from one pause to the next. Default 1.5, like PyTorch: the pauses are 1000, 1500, 2250, 3375,
    /// 5062 ms. (PyTorch counts them from the sending and has the first pause twice.)
    pub fn with_backoff(mut self, factor: f64) -> Self {
        self.backoff = factor;
        self
    }

    /// Sets the longest pause, jitter included. Default [`Duration::MAX`], because few retries keep pauses short.
    pub fn with_max_delay(mut self, max: Duration) -> Self {
        self.max_delay = max;
        self
    }

    /// Sets the fraction that a pause may be shorter or longer, drawn evenly. Default 0. Use some jitter where many
    /// workers lose the same peer, so that they do not all reconnect at once.
    pub fn with_jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets how long an attempt waits for its answer, more than zero; `None`: indefinitely. Default 10 s: with the 60
    /// s of a call without retries, one lost answer would cost a minute, like in PyTorch.
    pub fn with_attempt_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.attempt_timeout = timeout.into();
        self
    }

    /// Makes an attempt wait about as long as the worker takes to answer, like TCP before it sends a packet again: a
    /// lost message is repeated soon, and a slow worker is not flooded with repetitions.
    ///
    /// The first attempt waits for the smoothed round trip of the group's calls to this worker and four times its
    /// variation (1 s before the first answer, and without [`RetryOptions::with_group`]), but at least for `min`;
    /// after each attempt that times out, the next waits twice as long. [`RetryOptions::with_attempt_timeout`] is the
    /// longest wait. Use it for short functions that always answer at once. By default each attempt waits for the
    /// attempt timeout, because the functions of a group may take different times.
    pub fn with_measured_timeout(mut self, min: Duration) -> Self {
        self.measured_timeout_min = Some(min);
        self
    }

    /// Sets how long the call takes at most, all attempts included: the last attempt is cut short. More than zero;
    /// `None`, the default, means no limit.
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// [`RetryOptions::with_timeout`], unless that is shorter already.
    pub(crate) fn with_timeout_at_most(mut self, timeout: Duration) -> Self {
        self.timeout = Some(self.timeout.map_or(timeout, |own| own.min(timeout)));
        self
    }

    /// Sets whether permanent errors are retried as well: the function's own errors, an unknown function or worker.
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

    /// Checks the options. Each call that uses them does the same check.
    ///
    /// # Errors
    /// [`RetryOptionsError`] for the first invalid option.
    pub fn validate(&self) -> Result<(), RetryOptionsError> {
        let (backoff, jitter) = (self.backoff, self.jitter);
        Err(if backoff < 1.0 {
            RetryOptionsError::Backoff { backoff }
        } else if !backoff.is_finite() {
            RetryOptionsError::BackoffNotFinite { backoff }
        } else if !(0.0..=1.0).contains(&jitter) {
            RetryOptionsError::Jitter { jitter }
        } else if self.attempt_timeout == Some(Duration::ZERO) {
            RetryOptionsError::AttemptTimeout
        } else if self.timeout == Some(Duration::ZERO) {
            RetryOptionsError::Timeout
        } else {
            return Ok(());
        })
    }
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            max_retries: 3,
            retry_duration: Duration::from_secs(1),
            backoff: 1.5,
            max_delay: Duration::MAX,
            jitter: 0.0,
            attempt_timeout: Some(Duration::from_secs(10)),
            measured_timeout_min: None,
            timeout: None,
            retry_executed: false,
            group: None,
        }
    }
}

/// The error of invalid [`RetryOptions`].
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RetryOptionsError {
    /// The backoff factor is below 1. PyTorch's text names the wrong option.
    #[error("maxRetries cannot be exponentially decaying.")]
    Backoff {
        /// The value given.
        backoff: f64,
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

c10d_socket::debug_as_display!(RetryOptionsError);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn refusal(options: &RetryOptions) -> String {
        options.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_those_of_the_first_pytorch_with_retries() {
        let options = RetryOptions::default();
        assert_eq!(options.max_retries, 3);
        assert_eq!(options.retry_duration, Duration::from_millis(1000));
        assert_eq!(options.backoff, 1.5);
        assert_eq!(options.jitter, 0.0);
        assert_eq!(options.attempt_timeout, Some(Duration::from_secs(10)));
        assert!(!options.retry_executed);
    }

    #[test]
    fn a_backoff_that_shrinks_is_refused_with_the_text_of_pytorch() {
        let options = RetryOptions::default().with_backoff(0.99).with_jitter(1.5);
        assert_eq!(
            refusal(&options),
            "maxRetries cannot be exponentially decaying."
        );
        let options = options.with_backoff(1.0);
        assert_eq!(
            refusal(&options),
            "the jitter must be within 0 to 1, but is 1.5"
        );
        assert_eq!(options.with_jitter(1.0).validate(), Ok(()));
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
            let options = RetryOptions::default().with_retry_duration(pause);
            options.retry_duration
        };
        assert_eq!(pause(Duration::ZERO), Duration::ZERO);
        assert_eq!(pause(Duration::from_nanos(1)), Duration::from_millis(1));
        assert_eq!(pause(Duration::from_millis(7)), Duration::from_millis(7));
        assert_eq!(pause(Duration::MAX), Duration::from_millis(u64::MAX));
    }
}
