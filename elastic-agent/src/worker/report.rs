//! How the workers of a group ended.

use std::time::{Instant, UNIX_EPOCH};

use super::outcome::WorkerOutcome;
use crate::failure::{Failures, ProcessFailure};

/// How the workers of a group ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// The workers that exited: first those that were not stopped, then by time, and within a millisecond by rank.
    pub outcomes: Vec<WorkerOutcome>,
    /// The local ranks of workers that were killed because they did not exit in time.
    pub killed: Vec<usize>,
    /// The workers that still run although they were killed.
    pub abandoned: Vec<AbandonedWorker>,
    /// When the first output passed through this process; `None` if none did, as when it goes to files only.
    pub first_output: Option<Instant>,
}

/// A worker that still runs although it was killed: the kernel blocks it, most often in a device driver.
/// The machine may need a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbandonedWorker {
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's global rank.
    pub rank: usize,
    /// The process id.
    pub pid: u32,
}

impl StopReport {
    /// Sorts the outcomes like the records that nodes exchange, which have milliseconds. Therefore a report and its root
    /// cause agree on the first failure.
    pub(super) fn sort(&mut self) {
        self.outcomes.sort_by_key(|outcome| {
            let since = outcome.ended_at.duration_since(UNIX_EPOCH);
            let unix_ms = since.unwrap_or_default().as_millis();
            (outcome.was_stopped, unix_ms, outcome.rank)
        });
    }

    /// The workers that failed; `None` if all that exited succeeded. Reads their error files.
    #[must_use]
    pub fn failures(&self) -> Option<Failures> {
        let failed = self.outcomes.iter().filter(|end| !end.exit.is_success());
        Failures::new(failed.map(ProcessFailure::of).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::worker::ExitKind;

    #[test]
    fn exits_of_one_millisecond_are_in_the_order_of_their_ranks() {
        let outcome = |rank, at_us, was_stopped| WorkerOutcome {
            local_rank: rank,
            rank,
            pid: 17,
            exit: ExitKind::Code(3),
            ended_at: UNIX_EPOCH + Duration::from_micros(at_us),
            was_stopped,
            error_file: None,
            stderr_tail: Vec::new(),
        };
        let mut report = StopReport {
            outcomes: vec![
                outcome(2, 7100, false),
                outcome(1, 7900, false),
                outcome(0, 7950, true),
                outcome(3, 6900, false),
            ],
            ..StopReport::default()
        };
        report.sort();
        let ranks: Vec<usize> = report.outcomes.iter().map(|end| end.rank).collect();
        assert_eq!(ranks, [3, 1, 2, 0]);
    }
}
