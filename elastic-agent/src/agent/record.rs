//! What a round was like, from the start of its rendezvous until its workers have ended.

use std::time::{Duration, Instant, SystemTime};

use super::started::StartedWorkers;
use crate::progress::ProgressSeen;
use crate::worker::{StopReport, WorkerOutcome};

/// Why a round began.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoundCause {
    /// It is the agent's first.
    Start,
    /// Workers of this node had failed.
    Failure,
    /// Workers of this node, or of another one that reported it, made no progress.
    Stuck,
    /// Nodes joined, left or were lost, with a text about them.
    MembersChanged(String),
}

/// How a round ended on this node.
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
    /// No workers were started, for this reason.
    NotStarted(String),
}

/// How long the parts of a round took. Together they are the whole round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RoundPhases {
    /// Until the rendezvous was complete.
    pub rendezvous: Duration,
    /// Then, until the relay ran, and the ranks and the workers' environment were known.
    pub ranks: Duration,
    /// Then, until all processes had started.
    pub start: Duration,
    /// Then, until the agent stopped the workers.
    pub run: Duration,
    /// Then, until all processes had ended.
    pub stop: Duration,
}

/// One round of an agent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RoundRecord {
    /// The round's number and members, and the workers of this node; `None` if they did not start.
    pub started: Option<StartedWorkers>,
    /// When the agent began to join.
    pub began_at: SystemTime,
    /// Why it did.
    pub cause: RoundCause,
    /// How the round ended.
    pub ending: RoundEnding,
    /// Why the job ended with the round, if a rule for restarts ended it.
    pub reason: Option<String>,
    /// How long the parts took.
    pub phases: RoundPhases,
    /// The time from the start of the workers to their first output; `None` if none passed through this process.
    pub first_output: Option<Duration>,
    /// The time from the start of the workers to the first progress; `None` if none was reported. Read once a second.
    pub first_progress: Option<Duration>,
    /// The same for the last progress.
    pub last_progress: Option<Duration>,
    /// The highest step that a worker of this node reported.
    pub last_step: Option<u64>,
    /// The workers that exited, in the order in which the agent noticed.
    pub outcomes: Vec<WorkerOutcome>,
    /// How many restarts after failures this node had used when the round began.
    pub restarts: usize,
    /// How many it has left, without the one that follows.
    pub restarts_left: usize,
}

impl RoundPhases {
    /// The time of the whole round.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.rendezvous + self.ranks + self.start + self.run + self.stop
    }
}

/// Takes the time of a round that goes on.
#[derive(Debug)]
pub(super) struct RoundClock {
    began_at: SystemTime,
    /// When the current phase began.
    since: Instant,
    phases: RoundPhases,
    /// When the workers had started.
    started: Option<Instant>,
    restarts: usize,
}

impl RoundClock {
    pub(super) fn start(restarts: usize) -> Self {
        Self {
            began_at: SystemTime::now(),
            since: Instant::now(),
            phases: RoundPhases::default(),
            started: None,
            restarts,
        }
    }

    /// Ends the phase that `phase` selects.
    pub(super) fn end(&mut self, phase: impl FnOnce(&mut RoundPhases) -> &mut Duration) {
        let now = Instant::now();
        *phase(&mut self.phases) += now.duration_since(self.since);
        self.since = now;
    }

    /// Ends the phase in which the workers start.
    pub(super) fn end_start(&mut self) {
        self.end(|phases| &mut phases.start);
        self.started = Some(self.since);
    }

    /// The times of the phases that have ended.
    pub(super) const fn phases(&self) -> &RoundPhases {
        &self.phases
    }

    pub(super) fn record(
        &self,
        started: Option<StartedWorkers>,
        cause: RoundCause,
        ending: RoundEnding,
        report: &StopReport,
        seen: &ProgressSeen,
    ) -> RoundRecord {
        RoundRecord {
            started,
            began_at: self.began_at,
            cause,
            ending,
            reason: None,
            phases: self.phases,
            first_output: report
                .first_output
                .zip(self.started)
                .map(|(first, started)| first.saturating_duration_since(started)),
            first_progress: seen.first,
            last_progress: seen.last,
            last_step: seen.round.step,
            outcomes: report.outcomes.clone(),
            restarts: self.restarts,
            restarts_left: 0,
        }
    }
}
