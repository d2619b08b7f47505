//! The causes, endings and durations of rounds, the outcomes of an agent's work, and the errors that prevent it.

use std::time::Duration;

use c10d_socket::HostPort;
use elastic_rendezvous::{BoardError, RendezvousError};

use crate::environment::EnvironmentError;
use crate::failure::Failures;
use crate::job_end::EndNotice;
use crate::logs::LogDirectoryError;
use crate::relay::NodeRelayError;
use crate::watchdog::WatchdogError;
use crate::worker::StartError;

/// The reason why a round began.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoundCause {
    /// It is the agent's first round.
    Start,
    /// Workers of this node had failed, or could not be started.
    Failure,
    /// Workers of this node, or of another node that reported it, made no progress.
    Stuck,
    /// Nodes joined, left or were lost, with a text about them.
    MembersChanged(String),
}

/// The way in which a round ended on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoundEnding {
    /// The workers of this node succeeded.
    Succeeded,
    /// Workers of this node failed.
    Failed,
    /// The workers of this node made no progress.
    Stuck,
    /// Nodes joined, left or were lost, with a text about them.
    MembersChanged(String),
    /// Another node ended the job, for this reason.
    JobEnded(String),
    /// A signal stopped the agent.
    Signalled,
    /// The workers were not started, for this reason.
    NotStarted(String),
}

/// The durations of the parts of a round, which together are the whole round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RoundPhases {
    /// Time until the rendezvous was complete.
    pub rendezvous: Duration,
    /// Time from the end of the rendezvous until the relay ran, and the ranks and the workers' environment were
    /// known.
    pub ranks: Duration,
    /// Time from the assignment of ranks until all processes had started.
    pub start: Duration,
    /// Time from the start of the last process until the agent stopped the workers.
    pub run: Duration,
    /// Time from the stop signal until the last process exited.
    pub stop: Duration,
}

impl RoundPhases {
    /// The time of the whole round.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.rendezvous + self.ranks + self.start + self.run + self.stop
    }
}

/// Measures the time of a running round.
#[derive(Debug)]
pub(super) struct RoundClock {
    /// When the current phase began.
    since: Duration,
    phases: RoundPhases,
    restarts: usize,
}

impl RoundClock {
    pub(super) fn start(restarts: usize, now: Duration) -> Self {
        Self {
            since: now,
            phases: RoundPhases::default(),
            restarts,
        }
    }

    /// Ends the phase that `phase` selects.
    pub(super) fn end(
        &mut self,
        now: Duration,
        phase: impl FnOnce(&mut RoundPhases) -> &mut Duration,
    ) {
        *phase(&mut self.phases) += now.saturating_sub(self.since);
        self.since = now;
    }

    /// The times of the phases that have ended.
    pub(super) const fn phases(&self) -> &RoundPhases {
        &self.phases
    }

    /// How many restarts had been used when the round began.
    pub(super) const fn restarts(&self) -> usize {
        self.restarts
    }
}

/// The result of an agent's work.
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentOutcome {
    /// All workers of this node succeeded.
    Succeeded,
    /// Workers of this node failed, and no restart was left.
    Failed(Failures),
    /// A rule for restarts, or another node, ended the job, and no node starts workers again.
    Ended {
        /// The reason, as text for a log.
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
        /// The number of the signal.
        signal: i32,
        /// Whether the agent had started workers before the signal.
        had_workers: bool,
    },
}

impl AgentOutcome {
    /// A signal stopped running workers, or a wait after they had exited.
    pub(super) const fn signalled(signal: i32) -> Self {
        Self::Signalled {
            signal,
            had_workers: true,
        }
    }

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

/// The reason why an agent could not run the workers.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// An option has a value that no agent can use.
    #[error("invalid option: {option} {reason}")]
    InvalidOption {
        /// The option's name in [`AgentOptions`](crate::AgentOptions).
        option: &'static str,
        /// The reason why the value cannot be used.
        reason: &'static str,
    },
    /// The node could not join a round.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The node joined a round, but could not agree with its other nodes on the ranks of the workers.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// The node joined a round, but its workers got no relay.
    #[error(transparent)]
    Relay(#[from] NodeRelayError),
    /// Workers could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The environment of a worker could not be composed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The watchdog could not be started.
    #[error(transparent)]
    Watchdog(#[from] WatchdogError),
    /// The directory for the workers' progress could not be created.
    #[error("cannot create a directory for the workers' progress: {source}; set TMPDIR")]
    Progress {
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The store lacks the membership service that lets workers survive the death of other workers.
    #[error(
        "--keep-workers needs a workers' store with a membership service, which a launcher or `c10d store serve` of the \
         same version serves: the store {store} has none"
    )]
    NoMembership {
        /// The address of the workers' store.
        store: HostPort,
    },
    /// The log directory could not be created.
    #[error(transparent)]
    Logs(#[from] LogDirectoryError),
    /// Other nodes of the round finished, so that a new round would lack them.
    #[error("{finished} of {world_size} nodes have already finished and cannot join a new round")]
    OthersFinished {
        /// The number of nodes of the round that have succeeded.
        finished: usize,
        /// The number of nodes of the round.
        world_size: usize,
    },
    /// Workers failed, restarts were left, and the restart failed.
    #[error(
        "worker with rank {} failed ({}), and the workers cannot be restarted: {source}",
        failures.first().rank,
        failures.first().exit
    )]
    NotRestarted {
        /// The error of the restart.
        source: Box<Self>,
        /// The failures that made the restart necessary.
        failures: Failures,
    },
}

impl AgentError {
    /// Adds the failures that made a restart necessary to the error that prevented it.
    pub(super) fn with_failures(self, failures: Option<Failures>) -> Self {
        match failures {
            None => self,
            Some(failures) => Self::NotRestarted {
                source: Box::new(self),
                failures,
            },
        }
    }
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for AgentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
