//! The inputs of a round, and its effects: the actions that it requests.

use std::fmt;
use std::time::Duration;

use elastic_rendezvous::Membership;
use log::Level;
use rustix::process::Signal;

use super::outcome::{AgentError, AgentOutcome, RoundCause, RoundEnding, RoundPhases};
use crate::failure::{Decision, ExitRecord, Failures};
use crate::job_end::{EndNotice, OwnEnd};
use crate::progress::ProgressSeen;
use crate::restart_policy::RoundProgress;
use crate::worker::WorkerExit;

pub(crate) type Effects = Vec<Effect>;

#[derive(Debug)]
pub(crate) enum Input {
    /// Answers [`Effect::Join`]: a round of this many nodes is complete. `has_lost` is true if a member of the last round
    /// is missing.
    Joined { nodes: usize, has_lost: bool },
    /// Answers [`Effect::Prepare`]. `keeps` is true if the workers of the round that survive another worker are kept.
    Prepared { keeps: bool },
    /// Answers [`Effect::Start`]: all workers run.
    Started,
    /// Answers [`Effect::Join`], [`Effect::Prepare`] or [`Effect::Start`], if no worker was started. `signal` is the
    /// signal that stops the agent, if one has arrived.
    NotStarted {
        error: Box<AgentError>,
        signal: Option<i32>,
    },
    /// A worker of this round has exited.
    WorkerExited(WorkerExit),
    /// Answers [`Effect::ReadDeath`].
    Death(Box<Death>),
    /// The pause of [`Effect::ReplaceAfter`] is over.
    ReplaceDue { local_rank: usize },
    /// The time of [`Effect::ExpectMembers`] is over.
    MembersDue,
    /// Answers [`Effect::ReadGroup`], with the workers that run although the group has evicted them, by local rank.
    Group(GroupNews, Vec<usize>),
    /// Answers [`Effect::Replace`]: the worker runs.
    Replaced { local_rank: usize, pid: u32 },
    /// Answers [`Effect::Replace`] with a text about the failure, if there is no worker. A signal that has interrupted
    /// the attempt is a separate input.
    NotReplaced(String),
    /// Answers [`Effect::ReadCrash`].
    Crash(Box<Crash>),
    /// The time of [`Effect::ExpectExits`] is over.
    ExitsDue,
    /// The members of the round may have changed.
    MembersChanged,
    /// The workers report no progress.
    Stuck(Box<StuckWorkers>),
    /// The time of [`Effect::AwaitLoss`] is over.
    LossDue,
    /// During that time, all other members of the round have shown that they are not lost.
    NoLoss,
    /// A signal stops the agent.
    Signal(i32),
    /// Answers [`Effect::ReadMembership`]; `None` if the store does not answer.
    Membership(Option<Box<Membership>>),
    /// Answers [`Effect::ReadJobEnd`]: why another node ended the job.
    JobEnd(Option<Box<EndNotice>>),
    /// Answers [`Effect::ReadFinished`]: how many nodes have succeeded; `None` if the store does not answer.
    Finished(Option<usize>),
    /// Answers [`Effect::ReadEnded`]: how many nodes have reached the end of their programs; `None` if the store does
    /// not answer.
    Ended(Option<usize>),
    /// Answers [`Effect::ReportStuck`].
    IsFirstStuck(bool),
    /// Answers [`Effect::Stop`].
    Stopped(Box<Stopped>),
    /// Answers [`Effect::ReadFacts`].
    Facts(Facts),
    /// Answers [`Effect::EnterBarrier`] and [`Effect::WaitAtBarrier`]: all nodes have finished.
    BarrierOpen,
    /// Answers [`Effect::EnterBarrier`] and [`Effect::WaitAtBarrier`]: nodes are missing.
    BarrierClosed {
        signal: Option<i32>,
        membership: Option<Box<Membership>>,
    },
    /// Answers [`Effect::EnterBarrier`] and [`Effect::WaitAtBarrier`]: the store failed, with a text about that.
    BarrierFailed(String),
}

/// An action that a round requests. An effect with an answer is the last effect of its step.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Joins a round. Answered by [`Input::Joined`] or [`Input::NotStarted`].
    Join(Joins),
    /// Starts the relay, gets the ranks, and plans the workers. Answered by [`Input::Prepared`] or
    /// [`Input::NotStarted`].
    Prepare {
        /// How many restarts this node has used, and the sum of the used and the remaining restarts.
        restarts: usize,
        restarts_max: usize,
    },
    /// Starts the workers. Answered by [`Input::Started`] or [`Input::NotStarted`].
    Start(StartTimes),
    /// Tells the listeners that the workers run.
    TellStarted,
    /// Tells the membership service that this worker is dead, then finds out why it died. Answered by [`Input::Death`].
    ReadDeath(WorkerExit),
    /// Answered by [`Input::ReplaceDue`] after this time, unless the workers are stopped before.
    ReplaceAfter(usize, Duration),
    /// Answered by [`Input::MembersDue`] after this time, unless the workers are stopped before.
    ExpectMembers(Duration),
    /// Asks the membership service for the group of the workers. Answered by [`Input::Group`].
    ReadGroup,
    /// Kills the worker of this local rank, which then exits.
    Kill(usize),
    /// Stops the processes that the dead worker of this local rank has left behind, and starts a worker in its place.
    /// `restarts` are the two numbers of [`Effect::Prepare`]. Answered by [`Input::Replaced`] or
    /// [`Input::NotReplaced`].
    Replace {
        local_rank: usize,
        restarts: (usize, usize),
    },
    /// Reports to the listeners that this worker has replaced a dead worker.
    TellReplaced(usize),
    /// Reads the record of a worker that its own signal has killed. Answered by [`Input::Crash`].
    ReadCrash(WorkerExit),
    /// Answered by [`Input::ExitsDue`] after this time, unless the workers are stopped before.
    ExpectExits(Duration),
    ReadMembership,
    ReadJobEnd,
    ReadFinished,
    /// Counts this node among those whose programs have reached their end although workers failed at their exit.
    CountAtExit,
    ReadEnded,
    /// Counts this node among the nodes of the round whose workers are stuck.
    ReportStuck,
    ReadFacts,
    /// Answered by [`Input::LossDue`] after this time, or by [`Input::NoLoss`], unless the node joins before.
    AwaitLoss(Duration),
    /// Prepares workers of the next round while the workers of this round are being stopped.
    ForkAhead,
    /// Sends the signal that begins a [`Effect::Stop`], and waits for nothing.
    BeginStop(Stop),
    /// Stops the workers, and then the processes that they leave behind.
    Stop(Stop),
    /// Lets other nodes enter the round, once the workers of all its nodes run.
    OpenRound,
    /// Lets no further node enter the round.
    EndEntry,
    /// Checks in at the exit barrier, as one of this many nodes; `None` if nodes may join and leave, so that
    /// [`Effect::WaitAtBarrier`] has the number of nodes that are enough.
    EnterBarrier(Option<usize>),
    /// Waits until all nodes have checked in, a signal stops the agent, or the membership is not `seen` any more; for at
    /// most `timeout`. If workers survive the loss of a node, `enough` is the number of the remaining nodes.
    WaitAtBarrier {
        timeout: Duration,
        enough: Option<usize>,
        seen: Option<Box<Membership>>,
    },
    /// Publishes to the other nodes why the job is over, unless a node has done so already.
    PublishEnd(OwnEnd),
    /// Confirms to the node that hosts the store that this node no longer needs the store, because it has read why the
    /// job is over.
    Confirm,
    /// Closes the rendezvous.
    Close,
    TellFailed(WorkerExit),
    /// Tells the listeners that this worker failed while the other workers keep running.
    TellLost(WorkerExit),
    TellStuck(Box<StuckWorkers>),
    TellRestarting(String),
    RoundEnded(Box<RoundSummary>),
    Log(Level, String),
    /// The last effect.
    Finish(Box<Result<AgentOutcome, AgentError>>),
}

/// Which round a node joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joins {
    /// The next round, for which the members of the current round stop their workers.
    Next,
    /// The running round if it admits nodes, otherwise the next round.
    Running,
}

/// The figures that listeners get about the start of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StartTimes {
    /// How many restarts this node has used.
    pub(crate) restarts: usize,
    pub(crate) rendezvous: Duration,
    pub(crate) ranks: Duration,
}

/// The way in which the workers are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    With(Signal, Duration),
    /// Sends SIGTERM, with the shutdown timeout.
    Gently,
    /// Passes this signal on, with the shutdown timeout.
    BySignal(i32),
}

/// The workers of a round after their end.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    /// The failures of the workers that failed.
    pub(crate) failures: Option<Failures>,
    /// Whether one of them failed before it was stopped.
    pub(crate) has_own_failure: bool,
    /// The root cause, if other nodes have published exits.
    pub(crate) decision: Option<Decision>,
    /// Whether a worker still runs although it was killed.
    pub(crate) has_abandoned: bool,
    pub(crate) progress: ProgressSeen,
}

/// A worker that died while the other workers keep running.
#[derive(Debug)]
pub(crate) struct Death {
    pub(crate) exit: WorkerExit,
    /// The failure of this worker alone.
    pub(crate) failures: Option<Failures>,
    pub(crate) progress: RoundProgress,
    pub(crate) group: GroupNews,
}

/// A worker that its own signal has killed, with its record.
#[derive(Debug)]
pub(crate) struct Crash {
    pub(crate) exit: WorkerExit,
    pub(crate) record: ExitRecord,
    /// How many nodes have succeeded.
    pub(crate) finished: usize,
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

/// The state of the group of the workers in the membership service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupNews {
    /// The group forms, or continues without the worker.
    GoesOn,
    /// The node's workers are not members, so they have no state to lose.
    IsEmpty,
    /// All members have done their last step.
    Finished,
    /// The group is over, with a text about the reason.
    Ended(String),
    /// The service does not answer, with a text about that.
    OutOfReach(String),
}

/// The content of the round's store that a node reads when its workers have failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The reason why another node ended the job.
    pub(crate) job_end: Option<Box<EndNotice>>,
    /// Whether the workers of a node were stuck.
    pub(crate) is_any_stuck: bool,
    /// How many nodes have succeeded.
    pub(crate) finished: usize,
}

/// A round that is over, as far as this node decides about it.
#[derive(Debug)]
pub(crate) struct RoundSummary {
    pub(crate) cause: RoundCause,
    pub(crate) ending: RoundEnding,
    /// The reason why the job ended with the round, if a rule for restarts ended it.
    pub(crate) reason: Option<String>,
    pub(crate) phases: RoundPhases,
    /// How many restarts this node had used when the round began, and has left.
    pub(crate) restarts: usize,
    pub(crate) restarts_left: usize,
}
