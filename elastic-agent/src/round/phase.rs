//! The phases of a node in its round, each with its data.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::outcome::AgentError;
use crate::failure::Failures;
use crate::job_end::EndNotice;
use crate::restart_policy::{FailedWorker, RoundProgress, fatal_error};
use crate::worker::{ExitKind, WorkerExit};

#[derive(Debug)]
pub(super) enum Phase {
    /// The node waits for the other nodes of the next round. `failures` are those whose restart has not started workers
    /// yet.
    Joining {
        failures: Option<Failures>,
    },
    /// The round is complete; the relay starts, and the nodes exchange ranks.
    Preparing {
        nodes: usize,
        failures: Option<Failures>,
    },
    /// The processes of the workers start.
    Starting {
        nodes: usize,
        failures: Option<Failures>,
    },
    /// The round has started no workers, and the next phase depends on the answer to a question.
    NotStarted {
        error: Box<AgentError>,
        failures: Option<Failures>,
    },
    Running(Running),
    /// The workers are exiting, and the content of the store decides whether this node stops the job.
    Ending {
        nodes: usize,
        end: End,
        first: Option<First>,
    },
    /// The workers are being stopped.
    Stopping {
        nodes: usize,
        end: End,
    },
    /// Workers have failed or were stuck, and the content of the store decides about the next phase.
    Judging {
        nodes: usize,
        failure: Box<Failure>,
    },
    /// Workers of this node have failed after they had reached the end of their program.
    AwaitingOthers(Box<AwaitingOthers>),
    /// Workers have failed or were stuck, and no restart is left unless another node of the round turns out to be lost.
    AwaitingLoss(AwaitingLoss),
    /// The workers of this node have succeeded.
    AtBarrier(Barrier),
    Over,
}

/// The worker that failed first: its rank and its exit.
pub(super) type First = (usize, ExitKind);

/// A round whose workers run.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) nodes: usize,
    /// How many workers have succeeded.
    pub(super) succeeded: usize,
    /// How many workers have died and are not replaced.
    pub(super) gone: usize,
    /// How many workers have failed at the end of their program. `failed` is the worker that failed first.
    pub(super) at_exit: usize,
    /// The workers that their group has evicted and that still run, by local rank, and when this node has noticed.
    pub(super) evicted: BTreeMap<usize, Duration>,
    pub(super) failed: Option<First>,
    pub(super) known: Known,
    /// The reason why another node has ended the job, if the workers of this node may exit without a signal.
    pub(super) ended: Option<Box<EndNotice>>,
    pub(super) waiting: Waiting,
}

/// The question to which a running node waits for an answer.
#[derive(Debug, Default)]
pub(super) enum Waiting {
    #[default]
    Nothing,
    /// The number of finished nodes, because the departure of a finished node is not a change of the members.
    Finished { why: String, departed: usize },
    /// Whether the group of the workers has finished, because nothing is then left to do for a node that waits.
    Group { why: String },
    /// Whether a node has finished. Otherwise the node that closed the rendezvous without a reason has failed.
    Closed,
    /// Whether this node is the first of its round whose workers are stuck.
    IsFirst(Box<StuckWorkers>),
}

/// The reason why the workers of a round are stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Succeeded,
    Failed(Known),
    /// Workers have failed, each at the end of its program, and the other workers have succeeded.
    AtExit(Known),
    Stuck(Stall, Known),
    MembersChanged(String),
    /// The other nodes have removed this node, or it must assume that they have, because another world may exist.
    Evicted(String),
    JobEnded(Box<EndNotice>),
    Signalled(i32),
}

/// Whether and why the job is over, as far as a node has learned it when it stops its workers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Known {
    #[default]
    Nothing,
    /// This node has ended the job.
    Published,
    /// Another node has ended the job.
    Ended(Box<EndNotice>),
}

/// Workers of this node that made no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) silent_for: Duration,
    /// Whether this node was the first of the round to notice, so that it counts the restart.
    pub(super) is_first: bool,
}

/// Workers that failed, or were stuck.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) stall: Option<Stall>,
    pub(super) failures: Option<Failures>,
    pub(super) failed: Vec<FailedWorker>,
    pub(super) has_abandoned: bool,
    pub(super) known: Known,
    pub(super) progress: RoundProgress,
}

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

/// A node whose workers have failed at the end of their program. It waits for the end of the other nodes' programs before
/// it decides about a restart.
#[derive(Debug)]
pub(super) struct AwaitingOthers {
    pub(super) nodes: usize,
    pub(super) since: Duration,
    pub(super) failure: Failure,
}

/// A node without a restart left, which waits for the news of a lost node.
#[derive(Debug)]
pub(super) struct AwaitingLoss {
    pub(super) nodes: usize,
    pub(super) failure: Box<Failure>,
    /// Whether the time is over, and the membership is read for the last time.
    pub(super) is_late: bool,
}

/// A node that waits until the other nodes have finished.
#[derive(Debug, Clone, Copy)]
pub(super) struct Barrier {
    pub(super) nodes: usize,
    /// When the node arrived.
    pub(super) since: Duration,
    /// Whether it waited too long, and therefore asks how many other nodes have arrived.
    pub(super) is_late: bool,
}

/// Workers that report no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckWorkers {
    /// The time since the last progress of any worker of this node, or since their start.
    pub silent_for: Duration,
    /// The last step of each worker of this node by global rank; `None` if it has reported none in this round.
    pub steps: Vec<(usize, Option<u64>)>,
    /// The last step in the file that the workers share; `None` if there is none.
    pub shared_step: Option<u64>,
}

/// Writes the last known steps of the workers in one line.
impl fmt::Display for StuckWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// How many ranks one line names.
        const RANKS_MAX: usize = 16;
        let silent = self.silent_for.as_secs_f64();
        write!(
            f,
            "no worker of this node has made progress for {silent:.1} s: "
        )?;
        for (index, (rank, step)) in self.steps.iter().take(RANKS_MAX).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match step {
                Some(step) => write!(f, "{separator}rank {rank} was at step {step}")?,
                None => write!(f, "{separator}rank {rank} has reported no step")?,
            }
        }
        if self.steps.len() > RANKS_MAX {
            write!(f, ", and {} more ranks", self.steps.len() - RANKS_MAX)?;
        }
        match self.shared_step {
            Some(step) => write!(f, "; the progress file has step {step}"),
            None => Ok(()),
        }
    }
}
