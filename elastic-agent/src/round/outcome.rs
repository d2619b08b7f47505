//! The outcomes of an agent's work.

use crate::failure::Failures;
use crate::job_end::EndNotice;

/// How the work of an agent ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentOutcome {
    /// All workers of this node succeeded.
    Succeeded,
    /// Workers of this node failed, and no restart was left.
    Failed(Failures),
    /// A rule for restarts, or another node, ended the job, and no node starts workers again.
    Ended {
        /// Why, as text for a log.
        reason: String,
        /// The workers of this node that failed, if any did.
        failures: Option<Failures>,
        /// The notice of the other node, if another node ended the job.
        notice: Option<Box<EndNotice>>,
    },
    /// The job ended while this node was a spare.
    NotNeeded,
    /// A signal stopped the agent.
    Signalled {
        /// The signal's number.
        signal: i32,
        /// Whether the agent had started workers by then.
        had_workers: bool,
    },
}

impl AgentOutcome {
    /// A rule of this node ended the job.
    pub(super) const fn ended(reason: String, failures: Option<Failures>) -> Self {
        Self::Ended {
            reason,
            failures,
            notice: None,
        }
    }

    /// Another node ended the job.
    pub(super) fn ended_by(notice: EndNotice, failures: Option<Failures>) -> Self {
        Self::Ended {
            reason: notice.reason_text(),
            failures,
            notice: Some(Box::new(notice)),
        }
    }

    /// The failures of this node's workers; `None` if none is known to have failed.
    #[must_use]
    pub const fn failures(&self) -> Option<&Failures> {
        match self {
            Self::Failed(failures)
            | Self::Ended {
                failures: Some(failures),
                ..
            } => Some(failures),
            _ => None,
        }
    }
}
