//! The health check: a command that must succeed before this node joins a round.
//!
//! `retry` decides when a failed check is repeated; `check` runs the command. Knows no rounds: the agent decides what a
//! failed check means.

mod check;
mod retry;

use std::ffi::{OsStr, OsString};
use std::time::Duration;

pub(crate) use check::run;
pub(crate) use retry::Retry;

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

    /// The command.
    #[must_use]
    pub fn command(&self) -> &OsStr {
        &self.command
    }

    /// How long the command may run, before it is killed and counts as failed. The default is
    /// [`DEFAULT_TIMEOUT`](Self::DEFAULT_TIMEOUT).
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
