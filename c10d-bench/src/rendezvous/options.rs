//! The options of `c10d-bench rendezvous`.

use std::time::Duration;

use clap::Args;

use super::protocol::End;
use crate::numbers::at_least_one;

/// The longest measured time at rest, and the longest interval of heartbeats.
const SECONDS_MAX: u64 = 3600;

/// Measures how long nodes that arrive at the same time take to get their ranks. The store and the nodes run in
/// processes of their own on this machine.
#[derive(Debug, Args)]
pub(crate) struct RendezvousBenchArgs {
    /// The numbers of nodes, measured one after the other.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [2, 8, 32, 128], value_parser = at_least_one)]
    pub(super) nodes: Vec<usize>,

    /// The number of rounds; figures are their medians.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub(super) rounds: usize,

    /// The most nodes in one process; fewer if the limit on open files requires it.
    #[arg(long, value_name = "N", default_value_t = 2500, value_parser = at_least_one)]
    pub(super) nodes_per_process: usize,

    /// How many nodes share a connection and, with those of their process, a thread, for more nodes than open files or
    /// threads. With 1, each has its own.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = at_least_one,
        conflicts_with_all = ["kill_one", "kill_first_after", "end"]
    )]
    pub(super) nodes_per_connection: usize,

    /// How long the nodes are measured at rest after all have joined; 0 for not at all.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=SECONDS_MAX)
    )]
    pub(super) rest: u64,

    /// The interval between the heartbeats of a node. It counts as lost after three without one.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 5000,
        value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX * 1000)
    )]
    pub(super) keep_alive: u64,

    /// Kills one node when all have joined, right after a heartbeat, and measures when the others know it.
    #[arg(long)]
    kill_one: bool,

    /// Joins one node before the others, which then holds the write lease, and kills it so long after the start
    /// of the others, while they join. One more node can take its place. Each round also measures the same
    /// without the kill.
    #[arg(
        long,
        value_name = "MS",
        conflicts_with_all = ["kill_one", "rest"],
        value_parser = clap::value_parser!(u64).range(..=SECONDS_MAX * 1000)
    )]
    kill_first_after: Option<u64>,

    /// At last, lets all nodes close the rendezvous, or leave it, and end at once, and measures when the last one has.
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "close"
    )]
    pub(super) end: Option<End>,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

/// A node that is killed without leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    None,
    /// One of the last to join, after all have ranks.
    Last,
    /// The first to join, so long after the others were started.
    First {
        after: Duration,
    },
}

impl RendezvousBenchArgs {
    pub(super) fn victim(&self) -> Victim {
        match self.kill_first_after {
            Some(milliseconds) => Victim::First {
                after: Duration::from_millis(milliseconds),
            },
            None if self.kill_one => Victim::Last,
            None => Victim::None,
        }
    }
}
