//! How references behave when things go slowly or wrong.

use std::time::Duration;

use rpc_agent::RetryOptions;

use crate::context::Timing;

/// How references behave; all has a default.
#[derive(Debug, Clone)]
#[must_use]
pub struct RRefOptions {
    retries: RetryOptions,
    attempt_timeout: Duration,
    timing: Timing,
}

impl RRefOptions {
    /// How messages about references are repeated. All of them may be, creations included: a function
    /// still runs once. Default: 8 retries, the first after 0.2 s and the last after about 10 s of pauses
    /// in all; what has failed then is tried again at a low rate.
    pub fn with_retries(mut self, retries: RetryOptions) -> Self {
        self.retries = retries;
        self
    }

    /// How long one attempt waits for its answer; zero: for ever. Default 10 s.
    pub fn with_attempt_timeout(mut self, timeout: Duration) -> Self {
        // An attempt has no zero, and `MAX` for this.
        self.attempt_timeout = if timeout.is_zero() {
            Duration::MAX
        } else {
            timeout
        };
        self
    }

    /// How long a reference may be under way in an answer before its receiver is asked whether it has come:
    /// what was lost is known then, and freed. An answer that takes longer is refused when it comes. Default
    /// 30 s.
    pub fn with_probe_after(mut self, time: Duration) -> Self {
        self.timing.probe_after = time;
        self
    }

    /// How long a message whose retries are used up waits for a sign of life of its receiver before it is
    /// tried all the same. Default 10 s.
    pub fn with_resend_after(mut self, time: Duration) -> Self {
        self.timing.resend_after = time;
        self
    }

    pub(crate) const fn timing(&self) -> Timing {
        self.timing
    }

    /// The retries of a message whose answer is waited for so long; `None`: as long as they go.
    pub(crate) fn retries_within(&self, timeout: Option<Duration>) -> RetryOptions {
        let retries = self.retries.clone();
        let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero()) else {
            return retries.with_attempt_timeout(self.attempt_timeout);
        };
        let attempt = self.attempt_timeout.min(timeout);
        retries
            .with_attempt_timeout(attempt)
            // An attempt that begins by then is over in time.
            .with_total_time_max(timeout.saturating_sub(attempt))
    }
}

impl Default for RRefOptions {
    fn default() -> Self {
        Self {
            retries: RetryOptions::default()
                .with_max_retries(8)
                .with_retry_duration(Duration::from_millis(200))
                .with_max_delay(Duration::from_secs(4))
                .with_jitter(0.1),
            attempt_timeout: Duration::from_secs(10),
            timing: Timing::default(),
        }
    }
}
