//! Options and rules shared by the benchmarks of two workers: where the two run, how often and how long
//! each figure is measured, and which of two measurements goes first.

use std::time::Duration;

use clap::Args;

use crate::numbers::{at_least_one, round_seconds};

/// The timeout of each step: far above every plausible figure.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The most calls that one worker queues for another.
const IN_FLIGHT_MAX: usize = 65_536;

/// The number of concurrent calls or references to which goals apply.
pub(super) const GOAL_IN_FLIGHT: usize = 64;

/// The options of benchmarks of two workers.
#[derive(Debug, Args)]
pub(super) struct PairArgs {
    /// How long each figure is measured in a round.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = round_seconds)]
    seconds: f64,

    /// The number of rounds after a warm-up; figures are medians of the rounds.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub(super) rounds: usize,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub(super) json: bool,

    /// Does not pin the two sides to cores.
    #[arg(long)]
    pub(super) no_pin: bool,
}

impl PairArgs {
    /// How long each figure is measured in a round.
    pub(super) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Where the two workers run.
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

/// Whether the first and the second measurement of a round is the floor. They alternate, as the second finds
/// caches filled by the first.
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
    fn the_floor_is_first_in_every_second_round() {
        assert_eq!([order(0), order(1)], [[false, true], [true, false]]);
    }
}
