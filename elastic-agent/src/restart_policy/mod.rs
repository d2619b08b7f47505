//! Decides whether failed workers are restarted. Pure.
//!
//! Each node decides about its own failures and counts its own restarts, like in PyTorch.

mod python_error;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

pub(crate) use self::python_error::{fatal_error, without_rank};
use crate::worker::ExitKind;

/// A limit on the number of restarts within any period of a given length.
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
    /// The number of restarts that are allowed in all. `None` means 0 if there is no other limit, which is PyTorch's
    /// default. With another limit, `None` does not limit the number of restarts.
    pub max_restarts: Option<usize>,
    /// The number of restarts that are allowed in any window of time.
    pub budget: Option<RestartBudget>,
    /// The number of restarts in a row that may bring no progress. The job stops on all nodes at the next failure.
    pub max_without_progress: Option<usize>,
    /// The exit codes of workers, negative for signals, that end the job on all nodes at once.
    pub final_exit_codes: BTreeSet<i32>,
    /// Whether workers are also started again after errors of the Python program that the next start would meet too,
    /// such as a missing module. Otherwise they end the job on all nodes.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedWorker {
    pub(crate) rank: usize,
    pub(crate) exit: ExitKind,
    /// Whether the agent stopped it. Its exit then says nothing about the job.
    pub(crate) was_stopped: bool,
    /// The Python error that ended it, if the same error is to be expected at each start.
    pub(crate) fatal_error: Option<String>,
}

/// The steps that the workers of this node reported in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RoundProgress {
    /// The highest step.
    pub(crate) step: Option<u64>,
    /// Whether a worker reported progress without a number.
    pub(crate) has_unnumbered: bool,
}

/// The consequence of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The workers are started again. The restart is counted.
    Restart,
    /// The limits allow no further restart of this node. As in PyTorch, nodes that still run are left alone.
    Exhausted,
    /// The job stops on all nodes, for this reason.
    EndJob(String),
}

/// Counts restarts, and decides about the next one. Times are counted from any moment.
#[derive(Debug)]
pub(crate) struct RestartPolicy {
    rules: RestartRules,
    used: usize,
    spent: Spent,
    /// The highest step of all rounds.
    best_step: Option<u64>,
    /// Restarts in a row that brought no progress yet.
    without_progress: usize,
}

impl RestartPolicy {
    pub(crate) fn new(rules: RestartRules) -> Self {
        Self {
            rules,
            used: 0,
            spent: Spent::default(),
            best_step: None,
            without_progress: 0,
        }
    }

    /// Returns how many restarts after failures have been allowed.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// Returns how many more restarts the limits allow at `now`, if each restart fails at once without progress.
    pub(crate) fn left(&self, now: Duration) -> usize {
        let rules = &self.rules;
        let limits = [
            rules
                .restarts_max()
                .map(|max| max.saturating_sub(self.used)),
            rules.budget.map(|budget| self.spent.left(budget, now)),
            rules
                .max_without_progress
                .map(|max| max.saturating_sub(self.without_progress)),
        ];
        limits.into_iter().flatten().min().unwrap_or_default()
    }

    /// Whether the limits allow no further restart at `now`, whatever progress the round has made.
    pub(crate) fn is_used_up(&self, now: Duration) -> bool {
        let rules = &self.rules;
        rules.restarts_max().is_some_and(|max| max <= self.used)
            || rules
                .budget
                .is_some_and(|budget| self.spent.left(budget, now) == 0)
    }

    /// Returns why the job must end although restarts are left: a worker exited with a code that forbids restarts.
    /// This also applies to workers that failed while the agent was about to stop them.
    pub(crate) fn final_exit(&self, failed: &[FailedWorker]) -> Option<String> {
        let is_final = |worker: &&FailedWorker| {
            !worker.was_stopped && self.rules.final_exit_codes.contains(&worker.exit.code())
        };
        let worker = failed.iter().find(is_final)?;
        Some(format!(
            "worker with rank {} ended with {}, after which the job is not to be restarted",
            worker.rank, worker.exit
        ))
    }

    /// Decides about workers that failed or were stuck at `now`, in a round with this progress.
    pub(crate) fn after_failure(
        &mut self,
        now: Duration,
        failed: &[FailedWorker],
        progress: RoundProgress,
    ) -> Decision {
        if let Some(reason) = self.final_exit(failed) {
            return Decision::EndJob(reason);
        }
        self.note_progress(progress);
        if let Some(max) = self.rules.max_without_progress
            && self.without_progress >= max
        {
            return Decision::EndJob(self.no_progress(max));
        }
        if self.left(now) == 0 {
            return Decision::Exhausted;
        }
        if let Some(reason) = self.why_hopeless(failed) {
            return Decision::EndJob(reason);
        }
        self.used += 1;
        self.without_progress += 1;
        self.spent.add(now);
        Decision::Restart
    }

    /// The last restart does not count, because a lost node has caused it.
    pub(crate) fn take_back(&mut self) {
        self.used = self.used.saturating_sub(1);
        self.without_progress = self.without_progress.saturating_sub(1);
        self.spent.take_back();
    }

    /// Returns why no start of these workers could succeed, if the rules consider this.
    pub(crate) fn why_hopeless(&self, failed: &[FailedWorker]) -> Option<String> {
        hopeless(failed).filter(|_| !self.rules.restarts_on_fatal_errors)
    }

    /// Takes the progress of a round, whatever ended it.
    pub(crate) fn note_progress(&mut self, progress: RoundProgress) {
        if progress.has_unnumbered || progress.step > self.best_step {
            self.without_progress = 0;
        }
        self.best_step = self.best_step.max(progress.step);
    }

    fn no_progress(&self, max: usize) -> String {
        let place = match self.best_step {
            Some(step) => format!("beyond step {step}"),
            None => "to a first step".to_owned(),
        };
        let restarts = match max {
            0 => return format!("the workers failed without progress {place}"),
            1 => "a restart".to_owned(),
            more => format!("{more} restarts in a row"),
        };
        format!("{restarts} brought no progress {place}")
    }

    #[cfg(test)]
    pub(crate) fn check_invariants(&self, now: Duration) {
        assert!(self.without_progress <= self.used, "{self:?}");
        if let Some(max) = self.rules.restarts_max() {
            assert!(self.used <= max, "{self:?}");
        }
        if let Some(max) = self.rules.max_without_progress {
            assert!(self.without_progress <= max, "{self:?}");
        }
        if let Some(budget) = self.rules.budget {
            self.spent.check_invariants(budget, now);
        }
    }
}

/// Returns the reason why the next start would fail in the same way: each worker of this node that failed on its own
/// has an error of the program. A worker with another failure, for example after the loss of another worker, may be
/// the cause of the remaining failures.
fn hopeless(failed: &[FailedWorker]) -> Option<String> {
    let mut own = failed
        .iter()
        .filter(|worker| !worker.was_stopped)
        .peekable();
    let first = *own.peek()?;
    let error = first.fatal_error.as_ref()?;
    own.all(|worker| worker.fatal_error.is_some()).then(|| {
        format!(
            "worker with rank {} would fail at each start: {error}",
            first.rank
        )
    })
}

/// The longest history: a larger budget than this is not used up in any window.
const TIMES_MAX: usize = 10_000;

/// When restarts happened.
#[derive(Debug, Default)]
struct Spent {
    times: VecDeque<Duration>,
}

impl Spent {
    fn add(&mut self, now: Duration) {
        if self.times.len() == TIMES_MAX {
            self.times.pop_front();
        }
        self.times.push_back(now);
    }

    /// The last restart does not count.
    fn take_back(&mut self) {
        self.times.pop_back();
    }

    /// Returns how many restarts are left in the window that ends at `now`. A restart counts until the window's
    /// length has passed.
    fn left(&self, budget: RestartBudget, now: Duration) -> usize {
        let recent = self
            .times
            .iter()
            .rev()
            .take_while(|at| now.saturating_sub(**at) < budget.window);
        budget.restarts.saturating_sub(recent.count())
    }

    /// Checks that no past window has more restarts than allowed.
    #[cfg(test)]
    fn check_invariants(&self, budget: RestartBudget, now: Duration) {
        for (index, end) in self.times.iter().enumerate() {
            let within = self.times.iter().take(index + 1);
            let count = within.filter(|at| *end - **at < budget.window).count();
            assert!(count <= budget.restarts, "{self:?} at {now:?}");
        }
    }
}
