//! How the workers that survive another one are kept: what a user chooses.

use std::time::Duration;

/// How the workers that survive another one are kept. Their script must use the membership service of the workers' store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepOptions {
    /// With fewer workers than this no work is done: those that are left wait for others.
    pub members_min: usize,
    /// Whether another worker is started in the place of one that died, if a restart is left.
    pub is_replaced: bool,
    /// How long after the death.
    pub replace_after: Duration,
}

impl KeepOptions {
    /// Workers that died are replaced at once.
    #[must_use]
    pub const fn new(members_min: usize) -> Self {
        Self {
            members_min,
            is_replaced: true,
            replace_after: Duration::ZERO,
        }
    }
}
