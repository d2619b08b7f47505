//! The health check: a command that must succeed before this node joins a round.
//!
//! Knows no rounds: the agent decides what a failed check means.

mod check;

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use c10d_socket::BackoffOptions;

pub(crate) use check::run;

/// The pauses after failed checks in a row. Many faults, such as a file system that is not mounted yet, are gone after
/// seconds; a broken device should not be asked all the time. With jitter, nodes with a common fault do not check at the
/// same moment.
pub(crate) fn pauses() -> BackoffOptions {
    BackoffOptions::default()
        .with_first(Duration::from_secs(10))
        .with_factor(2.0)
        .with_max(Duration::from_secs(300))
        .with_jitter(0.25)
}

/// A command that must succeed before this node joins a round.
///
/// ```
/// use std::time::Duration;
///
/// use elastic_agent::HealthCheck;
///
/// let check = HealthCheck::new("nvidia-smi > /dev/null").with_timeout(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    command: OsString,
    timeout: Duration,
}

impl HealthCheck {
    /// A check that takes longer delays every restart by more than most jobs accept.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

    /// A check by `command`, run by `/bin/sh -c`. Exit code 0 means healthy.
    #[must_use]
    pub fn new(command: impl Into<OsString>) -> Self {
        Self {
            command: command.into(),
            timeout: Self::DEFAULT_TIMEOUT,
        }
    }

    /// The text that `/bin/sh -c` runs.
    #[must_use]
    pub fn command(&self) -> &OsStr {
        &self.command
    }

    /// How long the command may run.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long the command may run, before it is killed and counts as failed. The default is
    /// [`DEFAULT_TIMEOUT`](Self::DEFAULT_TIMEOUT).
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

#[cfg(test)]
mod tests {
    use c10d_socket::Backoff;

    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(pauses(), seed);
            for interval in [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0] {
                let pause = backoff.next_delay().as_secs_f64();
                let range = interval * 0.749..=interval * 1.251;
                assert!(range.contains(&pause), "seed {seed}: {pause} of {interval}");
            }
        }
    }
}
