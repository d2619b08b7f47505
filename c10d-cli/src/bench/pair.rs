//! What measurements of two workers have in common: where the two are, how often and how long each figure
//! is taken, and who of two goes first.
//!
//! Measures nothing itself.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::store::round_seconds;
use crate::parent::end_with_parent;
use crate::quantity::at_least_one;

/// The longest silence of the other side: far above every figure worth knowing.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// What one worker lets another one queue.
const IN_FLIGHT_MAX: usize = 65_536;

/// How many calls or references are under way where the goals are about many.
pub(super) const GOAL_IN_FLIGHT: usize = 64;

/// How it is measured and printed.
#[derive(Debug, Args)]
pub(super) struct DuelArgs {
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

impl DuelArgs {
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

/// The median and the 99th percentile in microseconds.
pub(super) fn percentiles(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    // There is at least one.
    let last = times.len() - 1;
    [last / 2, last * 99 / 100].map(|index| times[index].as_nanos() as f64 / 1e3)
}

/// To be called by the other process at its begin: it ends with the measurement that started it.
pub(super) fn end_with_measurement() {
    if let Err(error) = end_with_parent() {
        log::debug!("cannot watch the parent process: {error}");
    }
}

/// Tells the parent process where to connect.
pub(super) fn announce(address: SocketAddr) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "listening on {address}").and_then(|()| stdout.flush())
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
    fn percentiles_are_those_of_the_sorted_times() {
        let mut times: Vec<_> = (1..=201).rev().map(Duration::from_micros).collect();
        assert_eq!(percentiles(&mut times), [101.0, 199.0]);
        assert_eq!(percentiles(&mut [Duration::from_micros(7)]), [7.0, 7.0]);
    }

    #[test]
    fn the_two_sides_take_turns_in_going_first() {
        assert_eq!([order(0), order(1)], [[false, true], [true, false]]);
    }
}
