//! `c10d-bench rendezvous`: how long many nodes take to agree on their ranks.
//!
//! The store has a separate process; the nodes share several processes, because of the limit on open files. All are
//! connected before the start signal. This measures the protocol in its worst case, when all nodes arrive at once, not
//! a network. It starts no workers.

mod agreement;
mod node;
mod nodes;
mod processes;

use std::time::Instant;

use clap::Args;
use serde_json::{Map, Value, json};

use self::agreement::check;
use self::node::{Job, connections_to};
pub(super) use self::nodes::{RendezvousNodesArgs, serve};
use self::processes::Processes;
use crate::failure::{Context as _, Failure};
use crate::process;
use crate::report::{Samples, aligned, print, print_line};
use crate::servers::StoreServer;
use crate::workload::setting::at_least_one;

/// The most nodes in one process.
const NODES_PER_PROCESS: usize = 2500;

/// Measures how long nodes that arrive at the same time take to get their ranks. The store and the nodes run in
/// separate processes on this machine.
#[derive(Debug, Args)]
pub(crate) struct RendezvousBenchArgs {
    /// The numbers of nodes, measured one after the other.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [2, 8, 32, 128], value_parser = at_least_one)]
    nodes: Vec<usize>,

    /// The number of rounds; figures are their medians.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,

    /// The most nodes in one process; fewer if the limit on open files requires it.
    #[arg(long, value_name = "N", default_value_t = NODES_PER_PROCESS, value_parser = at_least_one)]
    nodes_per_process: usize,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Files of a process besides one connection for each node: the server's own sockets, the workers' store, standard
/// streams, and two more connections of each node of a small job.
const OTHER_FILES: u64 = 160;

/// The figures of one round, and their decimals in a table. The first figure is the time from the start signal until
/// the last node had its rank and the workers' store.
const FIGURES: [(&str, usize); 7] = [
    ("agree_ms", 1),
    ("store_peak_bytes", 0),
    ("connections_per_node", 2),
    ("connect_ms", 1),
    ("writes_tried", 0),
    ("writes_done", 0),
    ("state_bytes", 0),
];

/// The figures of one round; without a value if the system has no /proc.
type Round = [Option<f64>; FIGURES.len()];

pub(super) fn run(args: &RendezvousBenchArgs) -> Result<(), Failure> {
    // The processes inherit the limit.
    let files_left = process::raise_limit();
    let mut rows = Vec::new();
    let mut measured = Ok(());
    for &nodes in &args.nodes {
        match Row::measure(args, nodes, files_left) {
            Ok(row) => rows.push(row),
            Err(error) => {
                measured = Err(error);
                break;
            }
        }
    }
    // Also after an error: the figures of fewer nodes are complete.
    if args.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        print_line(json!({ "rows": rows }))?;
    } else if !rows.is_empty() {
        print(&table(&rows))?;
    }
    measured.context("cannot measure the rendezvous")
}

/// The figures for one number of nodes.
#[derive(Debug)]
struct Row {
    nodes: usize,
    rounds: Vec<Round>,
}

impl Row {
    fn measure(
        args: &RendezvousBenchArgs,
        nodes: usize,
        files_left: Option<u64>,
    ) -> Result<Self, Failure> {
        let fit = that_fit_in_a_process(nodes, files_left)?;
        let nodes_per_process = args.nodes_per_process.min(fit);
        let rounds = (0..args.rounds).map(|_| round(nodes, nodes_per_process));
        Ok(Self {
            nodes,
            rounds: rounds.collect::<Result<_, _>>()?,
        })
    }

    /// The medians, and after the first the fastest and the slowest round.
    fn figures(&self) -> Vec<(String, usize, Option<f64>)> {
        let mut figures = Vec::new();
        for (column, (name, decimals)) in FIGURES.into_iter().enumerate() {
            let mut samples = Samples::default();
            samples.extend(self.rounds.iter().filter_map(|round| round[column]));
            figures.push((name.to_owned(), decimals, samples.median()));
            if column == 0 {
                figures.push((format!("{name}_min"), decimals, samples.min()));
                figures.push((format!("{name}_max"), decimals, samples.max()));
            }
        }
        figures
    }

    fn json(&self) -> Value {
        let round = |round: &Round| -> Value {
            let figures = FIGURES.iter().zip(round);
            let pairs = figures.map(|((name, _), value)| ((*name).to_owned(), json!(value)));
            Value::Object(pairs.collect())
        };
        let figures = self.figures().into_iter();
        let mut row: Map<_, _> = figures
            .map(|(name, _, value)| (name, json!(value)))
            .collect();
        row.insert("nodes".to_owned(), json!(self.nodes));
        let rounds = self.rounds.iter().map(round).collect();
        row.insert("rounds".to_owned(), rounds);
        Value::Object(row)
    }
}

/// Measures one rendezvous, in a new store.
fn round(nodes: usize, nodes_per_process: usize) -> Result<Round, Failure> {
    let mut store = StoreServer::start(None, false)?;
    let job = Job {
        store: store.place(),
        nodes,
    };
    let start = Instant::now();
    let joined = Processes::start(&job, nodes_per_process).and_then(|mut processes| {
        let connecting = start.elapsed();
        let (joined, agreeing) = processes.join()?;
        let connections = connections_to(store.address().port());
        Ok((joined, agreeing, connecting, connections))
    });
    let (joined, agreeing, connecting, connections) =
        joined.map_err(|error| match store.child.ended() {
            // The nodes' errors only say that they have lost their connections.
            Some(status) => Failure::new(format!("the store's process ended early ({status})")),
            None => error,
        })?;
    check(&joined, nodes)?;
    let peak = store.process().peak_bytes();
    Ok([
        Some(agreeing.as_secs_f64() * 1e3),
        peak.map(|bytes| bytes as f64),
        connections.map(|count| count as f64 / nodes as f64),
        Some(connecting.as_secs_f64() * 1e3),
        Some(joined.writes_tried as f64),
        Some(joined.writes_done as f64),
        Some(joined.state_bytes as f64),
    ])
}

/// A line for each number of nodes.
fn table(rows: &[Row]) -> String {
    let mut lines: Vec<[String; FIGURES.len() + 3]> = Vec::new();
    for row in rows {
        let figures = row.figures();
        if lines.is_empty() {
            let names = figures.iter().map(|(name, ..)| name.clone());
            lines.push(cells("nodes".to_owned(), names));
        }
        let values = figures.iter().map(|(_, decimals, value)| {
            value.map_or_else(String::new, |value| format!("{value:.decimals$}"))
        });
        lines.push(cells(row.nodes.to_string(), values));
    }
    aligned(&lines, &[])
}

fn cells<const N: usize>(first: String, others: impl Iterator<Item = String>) -> [String; N] {
    let mut all = std::iter::once(first).chain(others);
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

/// Checks that there are enough open files. Returns the most nodes in one process.
fn that_fit_in_a_process(nodes: usize, files_left: Option<u64>) -> Result<usize, Failure> {
    let Some(left) = files_left else {
        return Ok(nodes);
    };
    let needed = (nodes as u64).saturating_add(OTHER_FILES);
    if left < needed {
        return Err(Failure::new(format!(
            "{nodes} nodes need {needed} open files in the store's process, but the limit allows only {left} (ulimit -Hn)"
        )));
    }
    Ok(usize::try_from(left - OTHER_FILES).unwrap_or(usize::MAX))
}
