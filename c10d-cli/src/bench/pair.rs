//! Options and rules shared by the benchmarks of two workers: where the two run, how often and how long
//! each figure is measured, and which of two measurements goes first.

use std::time::Duration;

use clap::Args;

use crate::quantity::{at_least_one, round_seconds};

/// The longest silence of the other side: far above every figure worth knowing.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// What one worker lets another one queue.
const IN_FLIGHT_MAX: usize = 65_536;

/// How many calls or references are under way where the goals are about many.
pub(super) const GOAL_IN_FLIGHT: usize = 64;

/// How it is measured and printed.
#[derive(Debug, Args)]
pub(super) struct PairArgs {
    /// How long each figure is measured in a round.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = round_seconds)]
    seconds: f64,

    /// How many rounds there are, after a warm-up; figures are their medians.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub(super) rounds: usize,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub(super) json: bool,

    /// Leaves it to the system on which core each side runs.
    #[arg(long)]
    pub(super) no_pin: bool,
}

impl PairArgs {
    /// How long each figure is measured in a round.
    pub(super) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Where the two sides are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    OneProcess,
    TwoProcesses,
}

impl Place {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::OneProcess => "in process",
            Self::TwoProcesses => "two processes",
        }
    }
}

/// Whether the floor is measured, first and second in this round: who comes second finds the caches of who
/// came first.
pub(super) const fn order(round: usize) -> [bool; 2] {
    let floor_first = !round.is_multiple_of(2);
    [floor_first, !floor_first]
}

pub(super) fn in_flight(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        count if count <= IN_FLIGHT_MAX => Ok(count),
        _ => Err(format!("must be from 1 to {IN_FLIGHT_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_sides_take_turns_in_going_first() {
        assert_eq!([order(0), order(1)], [[false, true], [true, false]]);
    }
}
