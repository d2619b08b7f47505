//! What a round is told, and what it wants done.

use std::time::Duration;

use elastic_rendezvous::Membership;
use log::Level;
use rustix::process::Signal;

use super::ending::{RoundCause, RoundEnding, RoundPhases};
use super::error::AgentError;
use super::outcome::AgentOutcome;
use super::stuck::StuckWorkers;
use crate::failure::{ExitRecord, Failures};
use crate::job_end::{EndNotice, OwnEnd};
use crate::progress::ProgressSeen;
use crate::restart_policy::RoundProgress;
use crate::worker::WorkerExit;

pub(crate) type Effects = Vec<Effect>;

#[derive(Debug)]
pub(crate) enum Input {
    /// Answers [`Effect::Join`]: a round of this many nodes is complete.
    Joined { nodes: usize },
    /// Answers [`Effect::ReadDepartures`]: whether a member of the last round is missing.
    Departures(bool),
    /// Answers [`Effect::Prepare`].
    Prepared,
    /// Answers [`Effect::Start`]: all workers run.
    Started,
    /// Answers any of these three. `signal`: the one that stops the agent, if one has arrived.
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
    /// Answers [`Effect::ReadGroup`].
    Group(GroupNews),
    /// Answers [`Effect::Replace`]: the worker runs.
    Replaced { local_rank: usize, pid: u32 },
    /// Answers the same, if there is no worker, with a text about that. A signal that has ended the attempt is an input
    /// of its own.
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
    /// A signal stops the agent.
    Signal(i32),
    /// Answers [`Effect::ReadMembership`]; `None` if the store does not answer.
    Membership(Option<Box<Membership>>),
    /// Answers [`Effect::ReadJobEnd`]: why another node ended the job.
    JobEnd(Option<Box<EndNotice>>),
    /// Answers [`Effect::ReadFinished`]: how many nodes have succeeded; `None` if the store does not answer.
    Finished(Option<usize>),
    /// Answers [`Effect::ReadEnded`]: how many nodes have reached the end of their programs; `None` as above.
    Ended(Option<usize>),
    /// Answers [`Effect::ReportStuck`].
    IsFirstStuck(bool),
    /// Answers [`Effect::Stop`].
    Stopped(Box<Stopped>),
    /// Answers [`Effect::ReadFacts`].
    Facts(Facts),
    /// Answers [`Effect::EnterBarrier`] and [`Effect::WaitAtBarrier`]: all nodes have finished.
    BarrierOpen,
    /// Answers the same: nodes are missing.
    BarrierClosed {
        signal: Option<i32>,
        membership: Option<Box<Membership>>,
    },
    /// Answers the same: the store failed, with a text about that.
    BarrierFailed(String),
}

/// What to do. Those with an answer are the last of a step.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Joins a round. Answered by [`Input::Joined`] or [`Input::NotStarted`].
    Join(Joins),
    /// Compares the members of the round with those of the last one. Answered by [`Input::Departures`].
    ReadDepartures,
    /// Starts the relay, gets the ranks, and plans the workers. Answered by [`Input::Prepared`] or
    /// [`Input::NotStarted`].
    Prepare {
        /// How many restarts this node has used, and how many that and those that are left make.
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
    /// Ends what the dead worker of this local rank has left behind, and starts another one in its place; `restarts` as
    /// in [`Effect::Prepare`]. Answered by [`Input::Replaced`] or [`Input::NotReplaced`].
    Replace {
        local_rank: usize,
        restarts: (usize, usize),
    },
    /// Tells the listeners that this worker runs in the place of one that died.
    TellReplaced(usize),
    /// Reads what a worker left that a signal of its own has ended. Answered by [`Input::Crash`].
    ReadCrash(WorkerExit),
    /// Answered by [`Input::ExitsDue`] after this time, unless the workers are stopped before.
    ExpectExits(Duration),
    ReadMembership,
    ReadJobEnd,
    ReadFinished,
    /// Counts this node among those whose programs have reached their end although workers failed at their exit.
    CountAtExit,
    ReadEnded,
    /// Counts this node among those of the round whose workers are stuck.
    ReportStuck,
    ReadFacts,
    /// Answered by [`Input::LossDue`] after this time, unless the node joins before.
    AwaitLoss(Duration),
    /// Has workers of the next round prepared while those of this one are stopped.
    ForkAhead,
    /// Sends the signal that begins a [`Effect::Stop`], and waits for nothing.
    BeginStop(Stop),
    /// Stops the workers, and ends what they leave behind.
    Stop(Stop),
    /// Lets other nodes enter the round, once the workers of all its nodes run.
    OpenRound,
    /// Lets none enter it any more.
    EndEntry,
    /// Checks in, as one of this many nodes; `None` if nodes may come and go, so that [`Effect::WaitAtBarrier`] says how
    /// many are enough.
    EnterBarrier(Option<usize>),
    /// Waits until all nodes have checked in, a signal stops the agent, or the membership is not `seen` any more; for at
    /// most `timeout`. So many are `enough`: all that are left, if workers survive the loss of a node.
    WaitAtBarrier {
        timeout: Duration,
        enough: Option<usize>,
        seen: Option<Box<Membership>>,
    },
    /// Tells the other nodes why the job ends, unless one has done so.
    PublishEnd(OwnEnd),
    /// Tells the node that hosts the store that this one needs it no longer: it knows why the job ends.
    Confirm,
    /// Closes the rendezvous.
    Close,
    TellFailed(WorkerExit),
    /// The same, and the others run on.
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
    /// The next one, for which the members of the current one stop their workers.
    Next,
    /// The one that runs, if it takes nodes in, else the next one.
    Running,
}

/// What listeners are told about the start of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StartTimes {
    /// How many restarts this node has used.
    pub(crate) restarts: usize,
    pub(crate) rendezvous: Duration,
    pub(crate) ranks: Duration,
}

/// How to stop the workers.
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
    /// Those that failed.
    pub(crate) failures: Option<Failures>,
    /// Whether one of them failed before it was stopped.
    pub(crate) has_own_failure: bool,
    /// Whether one still runs although it was killed.
    pub(crate) has_abandoned: bool,
    pub(crate) progress: ProgressSeen,
}

/// A worker that died while the others run.
#[derive(Debug)]
pub(crate) struct Death {
    pub(crate) exit: WorkerExit,
    /// This worker alone.
    pub(crate) failures: Option<Failures>,
    pub(crate) progress: RoundProgress,
    pub(crate) group: GroupNews,
}

/// What is known about a worker that a signal of its own has ended.
#[derive(Debug)]
pub(crate) struct Crash {
    pub(crate) exit: WorkerExit,
    pub(crate) record: ExitRecord,
    /// How many nodes have succeeded.
    pub(crate) finished: usize,
}

/// What the membership service knows about the group of the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupNews {
    /// It forms, or goes on without the worker.
    GoesOn,
    /// None of its workers is a member, so that none of them has anything to lose.
    IsEmpty,
    /// It is over, with a text about the reason.
    Ended(String),
    /// The service does not answer, with a text about that.
    OutOfReach(String),
}

/// What the store of the round says to a node whose workers have failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Why another node ended the job.
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
    /// Why the job ended with the round, if a rule for restarts ended it.
    pub(crate) reason: Option<String>,
    pub(crate) phases: RoundPhases,
    /// How many restarts this node had used when the round began, and has left.
    pub(crate) restarts: usize,
    pub(crate) restarts_left: usize,
}
