//! `c10d-bench rendezvous`: how long many nodes take to agree on their ranks, and what they cost at rest.
//!
//! The store has a process of its own; the nodes share several, because of the limit on open files. All are
//! connected before the start signal. This measures the protocol in its worst case, when all nodes arrive at
//! once, not a network. It starts no workers.
//!
//! Two experiments kill one node without leaving: after all have joined, or while they join.

mod agreement;
mod kernel;
mod node;
mod nodes;
mod processes;
mod protocol;
mod round;
mod stations;

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use self::kernel::{Loopback, available_memory};
pub(crate) use self::nodes::RendezvousNodesArgs;
use self::protocol::{End, Report};
use self::round::{Plan, Round, Victim, measure};
use crate::child::end_with_measurement;
use crate::failure::{Context as _, Failure};
use crate::numbers::at_least_one;
use crate::open_files;
use crate::output::{print, print_line};
use crate::report::Samples;

/// Files of a process besides one connection a node: the server's own sockets, the workers' store, standard streams, and
/// two more connections of each node of a small job.
const OTHER_FILES: u64 = 160;

/// The least memory of a connected node: stacks and buffers, its share of the store, and its sockets. With three
/// connections and two threads it was 92 kB without the kernel's part.
const MEMORY_PER_NODE: u64 = 64 << 10;

/// The longest measured time at rest, and the longest interval of heartbeats.
const SECONDS_MAX: u64 = 3600;

/// Measures how long nodes that arrive at the same time take to get their ranks. The store and the nodes run in
/// processes of their own on this machine.
#[derive(Debug, Args)]
pub(crate) struct RendezvousBenchArgs {
    /// The numbers of nodes, measured one after the other.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [2, 8, 32, 128], value_parser = at_least_one)]
    nodes: Vec<usize>,

    /// The number of rounds; figures are their medians.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,

    /// The most nodes in one process; fewer if the limit on open files requires it.
    #[arg(long, value_name = "N", default_value_t = 2500, value_parser = at_least_one)]
    nodes_per_process: usize,

    /// How many nodes share a connection and, with those of their process, a thread, for more nodes than open files or
    /// threads. With 1, each has its own.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = at_least_one,
        conflicts_with_all = ["kill_one", "kill_first_after", "end"]
    )]
    nodes_per_connection: usize,

    /// How long the nodes are measured at rest after all have joined; 0 for not at all.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=SECONDS_MAX)
    )]
    rest: u64,

    /// The interval between the heartbeats of a node. It counts as lost after three without one.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 5000,
        value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX * 1000)
    )]
    keep_alive: u64,

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
    end: Option<End>,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

impl RendezvousBenchArgs {
    fn victim(&self) -> Victim {
        match self.kill_first_after {
            Some(milliseconds) => Victim::First {
                after: Duration::from_millis(milliseconds),
            },
            None if self.kill_one => Victim::Last,
            None => Victim::None,
        }
    }
}

pub(super) fn run(args: &RendezvousBenchArgs) -> Result<(), Failure> {
    let victim = args.victim();
    if victim != Victim::None && args.nodes.contains(&1) {
        let text = "a node can only be killed among at least 2 nodes";
        return Err(Failure::usage(text));
    }
    // The processes inherit the limit.
    let files_left = open_files::raise_limit();
    let loopback = Loopback::measure_idle();
    let mut rows = Vec::new();
    let mut failure = None;
    for &nodes in &args.nodes {
        let plan = Plan {
            nodes,
            nodes_per_process: args.nodes_per_process,
            nodes_per_connection: args.nodes_per_connection,
            keep_alive: Duration::from_millis(args.keep_alive),
            rest: Duration::from_secs(args.rest),
            victim,
            ends: args.end,
            loopback: &loopback,
        };
        match Row::measure(plan, args.rounds, files_left) {
            Ok(row) => rows.push(row),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    // Also after an error: the figures of fewer nodes are complete.
    if args.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        print_line(json!({
            "rows": rows,
            "keep_alive_ms": args.keep_alive,
            "rest_seconds": args.rest,
            "idle_loopback_bytes_per_second": loopback.idle_rate,
        }))?;
    } else if !rows.is_empty() {
        print(&table(&rows))?;
    }
    if let Some(error) = failure {
        return Err(error).context("cannot measure the rendezvous");
    }
    match rows.iter().map(Row::lost).sum() {
        0 => Ok(()),
        lost => Err(Failure::new(format!(
            "{lost} nodes dropped out of their rounds at rest, or could not access the store"
        ))),
    }
}

/// A process of nodes: runs until the measurement ends it.
pub(super) fn serve(args: &RendezvousNodesArgs) {
    end_with_measurement();
    let job = args.job();
    let served = if job.nodes_per_connection > 1 {
        stations::serve(&job, args.nodes())
    } else {
        nodes::serve(args)
    };
    if let Err(error) = served {
        let text = error.to_string();
        // Without a measurement that reads it, nobody needs the report.
        let _ = nodes::send(&Report::Failed { text });
    }
}

/// The figures for one number of nodes.
#[derive(Debug)]
struct Row {
    nodes: usize,
    rounds: Vec<Round>,
}

/// A figure of one round.
#[derive(Debug)]
struct Figure {
    name: &'static str,
    value: Option<f64>,
    decimals: usize,
}

impl Row {
    fn measure(plan: Plan<'_>, rounds: usize, files_left: Option<u64>) -> Result<Self, Failure> {
        let nodes_per_process = check_limits(&plan, files_left)?;
        let plan = Plan {
            nodes_per_process,
            ..plan
        };
        let rounds = (0..rounds)
            .map(|_| measure(&plan))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            nodes: plan.nodes,
            rounds,
        })
    }

    /// How many nodes dropped out at rest or could not access the store, in all rounds.
    fn lost(&self) -> usize {
        let lost = |round: &Round| round.rest.as_ref().map_or(0, |rest| rest.lost);
        self.rounds.iter().map(lost).sum()
    }

    /// The median of each figure, in the order in which they are shown, and after the first the fastest and the
    /// slowest round.
    fn figures(&self) -> Vec<Figure> {
        let rounds: Vec<_> = self
            .rounds
            .iter()
            .map(|round| figures(round, self.nodes))
            .collect();
        let columns = rounds.iter().map(Vec::len).min().unwrap_or(0);
        let mut shown = Vec::with_capacity(columns + 2);
        for column in 0..columns {
            let mut samples = Samples::default();
            samples.extend(rounds.iter().filter_map(|figures| figures[column].value));
            let first = &rounds[0][column];
            let figure = |name, value| Figure {
                name,
                value,
                decimals: first.decimals,
            };
            shown.push(figure(first.name, samples.median()));
            if first.name == AGREE {
                shown.push(figure("agree_ms_min", samples.min()));
                shown.push(figure("agree_ms_max", samples.max()));
            }
        }
        shown
    }

    fn json(&self) -> Value {
        let object = |figures: Vec<Figure>| -> Value {
            let pairs = figures
                .into_iter()
                .map(|figure| (figure.name.to_owned(), json!(figure.value)));
            Value::Object(pairs.collect())
        };
        let mut row = object(self.figures());
        row["nodes"] = json!(self.nodes);
        let each = |round: &Round| object(figures(round, self.nodes));
        row["rounds"] = self.rounds.iter().map(each).collect();
        row
    }
}

/// The first figure.
const AGREE: &str = "agree_ms";

/// All figures of one round; the same names in every round.
fn figures(round: &Round, nodes: usize) -> Vec<Figure> {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let figure = |name, value, decimals| Figure {
        name,
        value,
        decimals,
    };
    let per_node = |total: f64| total / nodes as f64;
    let connections = round.connections.map(|count| per_node(count as f64));
    let mut figures = vec![
        figure(AGREE, Some(milliseconds(round.agreeing)), 1),
        figure("loopback_bytes", round.loopback_bytes, 0),
        figure(
            "store_peak_bytes",
            round.store_bytes_max.map(|bytes| bytes as f64),
            0,
        ),
        figure("connections_per_node", connections, 2),
        figure("connect_ms", Some(milliseconds(round.connecting)), 1),
        figure("writes_tried", Some(round.sum.writes_tried as f64), 0),
        figure("writes_done", Some(round.sum.writes_done as f64), 0),
        figure("state_bytes", Some(round.sum.state_bytes as f64), 0),
    ];
    if let Some(rest) = &round.rest {
        let bytes = rest.bytes_per_second.map(per_node);
        figures.extend([
            figure("rest_bytes_per_node_second", bytes, 1),
            figure("rest_lost", Some(rest.lost as f64), 0),
        ]);
    }
    if let Some(loss) = &round.loss {
        figures.extend([
            figure("first_told_ms", Some(loss.first_told * 1e3), 1),
            figure("last_told_ms", Some(loss.last_told * 1e3), 1),
            figure("kill_to_last_told_ms", Some(loss.since_kill * 1e3), 1),
        ]);
    }
    if let Some(ending) = round.ending {
        figures.push(figure("end_ms", Some(milliseconds(ending)), 1));
    }
    if let Some(killed) = &round.killed {
        let more = milliseconds(killed.agreeing) - milliseconds(round.agreeing);
        figures.extend([
            figure("killed_agree_ms", Some(milliseconds(killed.agreeing)), 1),
            figure("killed_more_ms", Some(more), 1),
            figure("killed_loopback_bytes", killed.loopback_bytes, 0),
        ]);
    }
    figures
}

fn table(rows: &[Row]) -> String {
    let mut table = String::new();
    for (index, row) in rows.iter().enumerate() {
        let figures = row.figures();
        let width = |figure: &Figure| figure.name.len().max(10);
        // Writing to a string cannot fail.
        if index == 0 {
            let _ = write!(table, "{:>8}", "nodes");
            for figure in &figures {
                let _ = write!(table, "  {:>width$}", figure.name, width = width(figure));
            }
            table.push('\n');
        }
        let _ = write!(table, "{:>8}", row.nodes);
        for figure in &figures {
            let decimals = figure.decimals;
            let text = figure
                .value
                .map_or_else(String::new, |value| format!("{value:.decimals$}"));
            let _ = write!(table, "  {text:>width$}", width = width(figure));
        }
        table.push('\n');
    }
    table
}

/// Checks that open files and memory suffice. Returns the most nodes in one process.
fn check_limits(plan: &Plan<'_>, files_left: Option<u64>) -> Result<usize, Failure> {
    // The node that replaces a killed one.
    let extra = u64::from(matches!(plan.victim, Victim::First { .. }));
    let nodes = (plan.nodes as u64).saturating_add(extra);
    let needed = nodes.saturating_mul(MEMORY_PER_NODE);
    if let Some(available) = available_memory().filter(|available| *available < needed) {
        return Err(Failure::new(format!(
            "{} nodes need at least {} MiB of memory, but only {} MiB are available",
            plan.nodes,
            needed >> 20,
            available >> 20
        )));
    }
    let Some(left) = files_left else {
        return Ok(plan.nodes_per_process);
    };
    let connections = nodes.div_ceil(plan.nodes_per_connection as u64);
    let needed = connections.saturating_add(OTHER_FILES);
    if left < needed {
        return Err(Failure::new(format!(
            "{} nodes need {needed} open files in the store's process, but the limit allows only {left} (ulimit -Hn)",
            plan.nodes
        )));
    }
    let fit = usize::try_from(left.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
    let fit = fit.saturating_mul(plan.nodes_per_connection);
    Ok(plan.nodes_per_process.min(fit).max(1))
}
