//! `c10d-bench rendezvous`: how long many nodes take to agree on their ranks, and what they cost at rest.
//!
//! The store has a process of its own; the nodes share several, because of the limit on open files. All are
//! connected before the start signal. This measures the protocol in its worst case, when all nodes arrive at
//! once, not a network. It starts no workers.
//!
//! Two experiments kill one node without leaving: after all have joined, or while they join.

mod agreement;
mod joined;
mod kernel;
mod node;
mod nodes;
mod options;
mod processes;
mod protocol;
mod round;
mod stations;

use std::fmt::Write as _;

use serde_json::{Value, json};

pub(crate) use self::joined::JoinedNodes;
use self::kernel::{Loopback, available_memory};
pub(crate) use self::nodes::RendezvousNodesArgs;
pub(crate) use self::options::RendezvousBenchArgs;
use self::options::Victim;
use self::protocol::Report;
use self::round::{AGREE, Figure, Plan, REST_LOST, measure};
use crate::child::end_with_measurement;
use crate::failure::{Context as _, Failure};
use crate::open_files;
use crate::output::{print, print_line};
use crate::report::Samples;

/// Files of a process besides one connection a node: the server's own sockets, the workers' store, standard streams, and
/// two more connections of each node of a small job.
const OTHER_FILES: u64 = 160;

/// The least memory of a connected node: stacks and buffers, its share of the store, and its sockets. With three
/// connections and two threads it was 92 kB without the kernel's part.
const MEMORY_PER_NODE: u64 = 64 << 10;

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
            options: args,
            nodes,
            nodes_per_process: args.nodes_per_process,
            victim,
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
        0.0 => Ok(()),
        lost => Err(Failure::new(format!(
            "{lost} nodes dropped out of their rounds at rest, or could not access the store"
        ))),
    }
}

/// A process of nodes: runs until the measurement ends it.
pub(super) fn serve(args: &RendezvousNodesArgs) {
    end_with_measurement();
    let served = if args.job.nodes_per_connection > 1 {
        stations::serve(&args.job, args.nodes())
    } else {
        nodes::serve(args)
    };
    if let Err(failure) = served {
        let text = failure.to_string();
        // Without a measurement that reads it, nobody needs the report.
        let _ = nodes::send(&Report::Failed { text });
    }
}

/// The figures for one number of nodes.
#[derive(Debug)]
struct Row {
    nodes: usize,
    /// The figures of each round.
    rounds: Vec<Vec<Figure>>,
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
    fn lost(&self) -> f64 {
        let figures = self.rounds.iter().flatten();
        let lost = figures.filter(|figure| figure.name == REST_LOST);
        lost.filter_map(|figure| figure.value).sum()
    }

    /// The median of each figure, in the order in which they are shown, and after the first the fastest and the
    /// slowest round.
    fn figures(&self) -> Vec<Figure> {
        let columns = self.rounds.iter().map(Vec::len).min().unwrap_or(0);
        let mut shown = Vec::with_capacity(columns + 2);
        for column in 0..columns {
            let mut samples = Samples::default();
            let figures = self.rounds.iter().map(|round| &round[column]);
            samples.extend(figures.filter_map(|figure| figure.value));
            let first = &self.rounds[0][column];
            let figure = |name, value| Figure::new(name, value, first.decimals);
            shown.push(figure(first.name, samples.median()));
            if first.name == AGREE {
                shown.push(figure("agree_ms_min", samples.min()));
                shown.push(figure("agree_ms_max", samples.max()));
            }
        }
        shown
    }

    fn json(&self) -> Value {
        let object = |figures: &[Figure]| -> Value {
            let pairs = figures.iter();
            Value::Object(
                pairs
                    .map(|figure| (figure.name.to_owned(), json!(figure.value)))
                    .collect(),
            )
        };
        let mut row = object(&self.figures());
        row["nodes"] = json!(self.nodes);
        row["rounds"] = self.rounds.iter().map(|round| object(round)).collect();
        row
    }
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
    let connections = nodes.div_ceil(plan.options.nodes_per_connection as u64);
    let needed = connections.saturating_add(OTHER_FILES);
    if left < needed {
        return Err(Failure::new(format!(
            "{} nodes need {needed} open files in the store's process, but the limit allows only {left} (ulimit -Hn)",
            plan.nodes
        )));
    }
    let fit = usize::try_from(left.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
    let fit = fit.saturating_mul(plan.options.nodes_per_connection);
    Ok(plan.nodes_per_process.min(fit).max(1))
}
