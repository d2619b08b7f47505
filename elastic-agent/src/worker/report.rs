//! How the workers of a group ended.

use std::time::Instant;

use super::outcome::WorkerOutcome;
use crate::failure::{Failures, ProcessFailure};

/// How the workers of a group ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// The workers that exited, in the order in which the group noticed.
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
    /// The workers that failed; `None` if all that exited succeeded. Reads their error files.
    #[must_use]
    pub fn failures(&self) -> Option<Failures> {
        let failed = self.outcomes.iter().filter(|end| !end.exit.is_success());
        Failures::new(failed.map(ProcessFailure::of).collect())
    }
}
