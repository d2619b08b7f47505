//! The options of a worker's references.

use std::time::Duration;

use rpc_agent::{RetryOptions, RetryOptionsError};

use crate::context::Timing;

/// An answer is waited for at least this long, as a packet by TCP on Linux: a shorter pause of the receiver is no
/// loss.
const MEASURED_TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// The retries and timers of a worker's references. [`RRefs::register_with`](crate::RRefs::register_with) checks
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
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how messages about references are retried, including creations; a creation's function still runs once.
    /// The attempt timeout is set by [`RRefOptions::with_attempt_timeout`].
    ///
    /// Default: 8 retries after pauses of 0.2 s to 4 s, 10 s in all, about as long as a short network outage. A
    /// message whose retries are exhausted is sent again later: see [`RRefOptions::with_resend_after`].
    pub fn with_retries(mut self, retries: RetryOptions) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the longest time that one attempt waits for its answer. The first attempt waits about as long as the
    /// receiver usually takes, at least 0.2 s, and each further attempt twice as long:
    /// [`RetryOptions::with_measured_timeout`]. `None` sets no longest time. A time below 1 ms counts as 1 ms.
    /// Default 10 s, like [`RetryOptions`].
    pub fn with_attempt_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.attempt_timeout = timeout.into().map(at_least_a_millisecond);
        self
    }

    /// Sets how long a reference may be under way in an answer before a probe checks whether its receiver has it. A
    /// lost reference is then freed, and a later answer is refused. [`Duration::MAX`] turns probes off. A time below
    /// 1 ms counts as 1 ms. Default 30 s, well above the time that an answer takes.
    pub fn with_probe_after(mut self, time: Duration) -> Self {
        self.timing.probe_after = time;
        self
    }

    /// Sets how long a message whose retries are exhausted waits for any message of its receiver before it is resent.
    /// [`Duration::MAX`] waits until a message of the receiver arrives. A time below 1 ms counts as 1 ms. Default 10
    /// s, so that a silent receiver gets few messages.
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

    /// The retries of a message that is to be answered within `timeout`; `None`: as long as the retries continue.
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
