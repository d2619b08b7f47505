//! What the restart policy and the report on failures are told about the workers of a round.

use std::time::Duration;

use crate::failure::Failures;
use crate::progress::ProgressSeen;
use crate::restart_policy::{FailedWorker, fatal_error};
use crate::worker::WorkerExit;

/// The workers that failed, as the policy judges them.
pub(super) fn failed_workers(failures: Option<&Failures>) -> Vec<FailedWorker> {
    let failures = failures.map_or(&[][..], Failures::all);
    let failed = failures.iter().map(|failure| FailedWorker {
        rank: failure.rank,
        exit: failure.exit,
        was_stopped: failure.was_stopped,
        fatal_error: fatal_error(failure.exit, failure.error_message(), &failure.stderr_tail),
    });
    failed.collect()
}

/// A worker that has just ended, as the policy judges it by its exit alone.
pub(super) const fn failed_worker(exit: &WorkerExit) -> FailedWorker {
    FailedWorker {
        rank: exit.rank,
        exit: exit.exit,
        was_stopped: false,
        fatal_error: None,
    }
}

/// Makes the worker with the lowest step the root cause: the agent stopped all of them, and the others most often wait
/// for that one.
pub(super) fn blame_for_stall(failures: &mut Failures, seen: &ProgressSeen, silent_for: Duration) {
    let step_of = |local_rank: usize| seen.steps.get(local_rank).copied().flatten();
    let known = failures.all().iter();
    let behind = known
        .filter_map(|it| Some((step_of(it.local_rank)?, it.rank)))
        .min();
    let silent = silent_for.as_secs_f64();
    match (behind, failures.all().first().map(|it| it.rank)) {
        (Some((step, rank)), _) => {
            failures.blame(
                rank,
                format!("alive at step {step}, without progress for {silent:.1} s"),
            );
        }
        (None, Some(rank)) => {
            failures.blame(rank, format!("alive, without progress for {silent:.1} s"));
        }
        (None, None) => {}
    }
}
