//! One node's rounds, from the first join to the end of the job: what to do next, and why. Pure.
//!
//! A [`Round`] takes [`Input`]s and returns [`Effect`]s. It owns the phase, the restart policy, the clock of the round
//! and the causes. It knows no store, handler, process, thread or clock: the agent runs the effects and tells the time.
//! A question is the last effect of a step, and its answer is the next input.

mod barrier;
mod exit_failure;
mod input;
mod machine;
mod membership;
mod outcome;
mod run;
mod start_failure;
#[cfg(test)]
mod tests;
mod verdict;

pub(crate) use self::barrier::EXIT_BARRIER_TIMEOUT;
pub use self::input::StuckWorkers;
pub(crate) use self::input::{
    Crash, Death, Effect, Facts, GroupNews, Input, Joins, RoundSummary, StartTimes, Stop, Stopped,
};
pub use self::machine::{KeepOptions, Replacement};
pub(crate) use self::machine::{Round, Settings};
pub(crate) use self::membership::MembersChange;
pub use self::outcome::{AgentError, AgentOutcome, RoundCause, RoundEnding, RoundPhases};
