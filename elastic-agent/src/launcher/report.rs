//! What a launcher returns.

use std::path::PathBuf;

use c10d_inspect::Report;

use super::error::LauncherError;
use super::stop::StopControl;
use crate::failure::{ExitRecord, Failures};
use crate::round::{AgentError, AgentOutcome};

/// How a job ended on this node.
#[derive(Debug)]
#[non_exhaustive]
pub struct LauncherReport {
    /// The agent's outcome, or why there is none.
    pub result: Result<AgentOutcome, LauncherError>,
    /// What the workers waited for when the first of them failed, if that tells the cause.
    pub why: Option<Report>,
    /// The first failure of the job, on any node, if workers were restarted after it and the job has failed.
    pub first_failure: Option<ExitRecord>,
    /// Where this node's workers have written their output, if they have written any to files.
    pub log_directory: Option<PathBuf>,
    pub(super) stop: Option<StopControl>,
}

impl LauncherReport {
    pub(super) const fn of(result: Result<AgentOutcome, LauncherError>) -> Self {
        Self {
            result,
            why: None,
            first_failure: None,
            log_directory: None,
            stop: None,
        }
    }

    pub(super) const fn of_error(error: LauncherError) -> Self {
        Self::of(Err(error))
    }

    pub(super) fn with_stop_control(mut self, stop: StopControl) -> Self {
        self.stop = Some(stop);
        self
    }

    /// The failures of this node's workers; `None` if none is known to have failed.
    #[must_use]
    pub const fn failures(&self) -> Option<&Failures> {
        match &self.result {
            Ok(outcome) => outcome.failures(),
            Err(LauncherError::Agent { source }) => match &**source {
                AgentError::NotRestarted { failures, .. } => Some(failures),
                _ => None,
            },
            Err(_) => None,
        }
    }

    /// An exit code for this process: 0 if the workers succeeded or were not needed, 128 and the number of the signal if
    /// one came before workers were started, 2 for options that cannot be used, 3 for a refusal of the system, 5 for a
    /// failure of the store's journal, and else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match &self.result {
            Ok(AgentOutcome::Succeeded | AgentOutcome::NotNeeded) => 0,
            Ok(AgentOutcome::Signalled {
                signal,
                had_workers: false,
            }) => u8::try_from(*signal).map_or(1, |signal| signal.saturating_add(128)),
            Err(LauncherError::Invalid(_)) => 2,
            Err(LauncherError::System { .. }) => 3,
            Err(LauncherError::Journal(_)) => 5,
            _ => 1,
        }
    }

    /// What handles signals until the report is dropped; `None` if it could not start.
    #[must_use]
    pub const fn stop_control(&self) -> Option<&StopControl> {
        self.stop.as_ref()
    }
}
