//! What a round was like, from the start of its rendezvous until its workers have ended.

use std::time::{Duration, SystemTime};

use super::started::StartedWorkers;
use crate::round::{RoundCause, RoundEnding, RoundPhases};
use crate::worker::WorkerOutcome;

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
