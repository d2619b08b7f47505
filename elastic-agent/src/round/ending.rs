//! The causes, endings and durations of rounds.

use std::time::Duration;

/// Why a round began.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoundCause {
    /// It is the agent's first.
    Start,
    /// Workers of this node had failed, or could not be started.
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
