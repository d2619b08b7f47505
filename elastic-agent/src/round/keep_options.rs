//! How the workers that survive another worker are kept: what a user chooses.

use std::time::Duration;

/// How the workers that survive another worker are kept. Their script must use the membership service of the workers' store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepOptions {
    /// With fewer workers than this no work is done: those that are left wait for others.
    pub members_min: usize,
    /// What takes the place of a worker that died, if a restart is left.
    pub replacement: Replacement,
    /// How long after the death.
    pub replace_after: Duration,
    /// How long after their start the service is asked for the workers. If none is a member, a warning says so; one that
    /// takes longer to join than the default, a minute, only has that warning.
    pub members_expected_after: Duration,
    /// How long a worker that its group has evicted may still run, for example to save its state; then it is killed, and
    /// replaced like any dead worker. 30 s.
    pub evicted_grace: Duration,
}

/// What takes the place of a worker that died while others run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// Another process on its node.
    Fork,
    /// Nothing.
    None,
}

impl KeepOptions {
    /// Workers that died are replaced at once.
    #[must_use]
    pub const fn new(members_min: usize) -> Self {
        Self {
            members_min,
            replacement: Replacement::Fork,
            replace_after: Duration::ZERO,
            members_expected_after: Duration::from_secs(60),
            evicted_grace: Duration::from_secs(30),
        }
    }
}
