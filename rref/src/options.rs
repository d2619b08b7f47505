//! The options of a worker's references.

use std::time::Duration;

use rpc_agent::{RetryOptions, RetryOptionsError};

use crate::context::Timing;

/// An answer is waited for at least this long, as a packet by TCP on Linux: a shorter pause of the receiver is no
/// loss.
const MEASURED_TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// Retries and timers of a worker's references. [`RRefs::register_with`](crate::RRefs::register_with) checks
/// them.
///
/// ```
/// use std::time::Duration;
/// use rref::RRefOptions;
///
/// let options = RRefOptions::new().with_probe_after(Duration::from_secs(5));
/// # drop(options);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RRefOptions {
    retries: RetryOptions,
    attempt_timeout: Option<Duration>,
    timing: Timing,
}

impl RRefOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How messages about references are retried, creations included; a creation's function still runs once.
    /// The attempt timeout is [`RRefOptions::with_attempt_timeout`]'s.
    ///
    /// Default: 8 retries after pauses of 0.2 s to 4 s, 10 s in all, about what a short network outage takes.
    /// A message whose retries are exhausted is sent again later: see [`RRefOptions::with_resend_after`].
    pub fn with_retries(mut self, retries: RetryOptions) -> Self {
        self.retries = retries;
        self
    }

    /// The longest time that one attempt waits for its answer. The first waits about as long as the receiver usually
    /// takes, at least 0.2 s, and each further one twice as long:
    /// [`RetryOptions::with_measured_timeout`]. `None`: no longest time. A time below 1 ms counts as 1 ms. Default
    /// 10 s, as that of [`RetryOptions`].
    pub fn with_attempt_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.attempt_timeout = timeout.into().map(at_least_a_millisecond);
        self
    }

    /// How long a reference may be under way in an answer before its receiver is asked whether it has arrived.
    /// A lost one is freed then, and a later answer is refused. [`Duration::MAX`]: never asked. A time below
    /// 1 ms counts as 1 ms. Default 30 s, well above the time that an answer takes.
    pub fn with_probe_after(mut self, time: Duration) -> Self {
        self.timing.probe_after = time;
        self
    }

    /// How long a message whose retries are exhausted waits for any message of its receiver before it is sent
    /// again. [`Duration::MAX`]: until the receiver is heard from. A time below 1 ms counts as 1 ms. Default
    /// 10 s, so that a silent receiver gets few messages.
    pub fn with_resend_after(mut self, time: Duration) -> Self {
        self.timing.resend_after = time;
        self
    }

    pub(crate) const fn timing(&self) -> Timing {
        self.timing
    }

    /// Checks the options.
    pub(crate) fn validate(&self) -> Result<(), RetryOptionsError> {
        self.retries_within(None).validate()
    }

    /// The retries of a message that is to be answered within `timeout`; `None`: as long as they go on.
    pub(crate) fn retries_within(&self, timeout: Option<Duration>) -> RetryOptions {
        self.retries
            .clone()
            .with_attempt_timeout(self.attempt_timeout)
            .with_measured_timeout(MEASURED_TIMEOUT_MIN)
            .with_timeout(timeout.map(at_least_a_millisecond))
    }
}

fn at_least_a_millisecond(time: Duration) -> Duration {
    time.max(Duration::from_millis(1))
}

impl Default for RRefOptions {
    fn default() -> Self {
        Self {
            retries: RetryOptions::default()
                .with_max_retries(8)
                .with_retry_duration(Duration::from_millis(200))
                .with_max_delay(Duration::from_secs(4))
                .with_jitter(0.1),
            attempt_timeout: Some(Duration::from_secs(10)),
            timing: Timing::default(),
        }
    }
}
