//! The user's rules for restarts.

use std::collections::BTreeSet;
use std::time::Duration;

/// How many restarts are allowed within any period of a given length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartBudget {
    /// The highest number of restarts in any window.
    pub restarts: usize,
    /// The length of a window.
    pub window: Duration,
}

/// When workers that failed are started again. All limits that are set hold.
///
/// ```
/// use std::time::Duration;
///
/// use elastic_agent::{RestartBudget, RestartRules};
///
/// // Ten restarts in any hour, unless three in a row lead to the same step.
/// let mut rules = RestartRules::default();
/// rules.budget = Some(RestartBudget { restarts: 10, window: Duration::from_secs(3600) });
/// rules.max_without_progress = Some(3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RestartRules {
    /// How many restarts are allowed in all. Without any limit it is 0, as in PyTorch; with another one, `None` does
    /// not limit their number.
    pub max_restarts: Option<usize>,
    /// How many restarts are allowed in any window of time.
    pub budget: Option<RestartBudget>,
    /// How many restarts in a row may bring no progress. The job ends on all nodes at the next failure.
    pub max_without_progress: Option<usize>,
    /// The exit codes of workers, negative for signals, that end the job on all nodes at once.
    pub final_exit_codes: BTreeSet<i32>,
    /// Whether workers are also started again after errors of the Python program that the next start would meet too,
    /// such as a module that is missing. Otherwise they end the job on all nodes.
    pub restarts_on_fatal_errors: bool,
}

impl RestartRules {
    /// The limit of the number of restarts; `None` if another limit takes its place.
    #[must_use]
    pub const fn restarts_max(&self) -> Option<usize> {
        let has_other = self.budget.is_some() || self.max_without_progress.is_some();
        match self.max_restarts {
            None if !has_other => Some(0),
            max => max,
        }
    }
}
