//! A process of nodes: connects them, lets them join at once, and reports what they were told.

use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::{io, thread};

use clap::Args;
use elastic_rendezvous::RendezvousHandler;

use super::agreement::{Joined, World};
use super::node::{Job, Node, now};
use crate::child::{end_with_measurement, park};
use crate::failure::{Context as _, Failure};
use crate::report::print_line;

/// The stack of each thread, which a thousand threads multiply.
pub(super) const STACK_BYTES: usize = 256 << 10;

/// The most bytes of a report, in which each node has a few.
pub(super) const REPORT_BYTES_MAX: usize = 1 << 20;

/// The nodes of one process.
#[derive(Debug, Args)]
pub(crate) struct RendezvousNodesArgs {
    /// The number of the first node in this process.
    #[arg(long)]
    first: usize,

    /// How many nodes are in this process.
    #[arg(long)]
    count: usize,

    #[command(flatten)]
    job: Job,
}

impl RendezvousNodesArgs {
    /// The arguments that the measurement uses to start a process.
    pub(super) fn command_line(job: &Job, nodes: &Range<usize>) -> [String; 5] {
        [
            "rendezvous-nodes".to_owned(),
            format!("--store={}", job.store),
            format!("--nodes={}", job.nodes),
            format!("--first={}", nodes.start),
            format!("--count={}", nodes.len()),
        ]
    }
}

/// Runs until the measurement kills this process. Reports, one line of JSON each, that the nodes are connected, and after a
/// line on standard input how they have joined.
pub(crate) fn serve(args: &RendezvousNodesArgs) -> Result<(), Failure> {
    end_with_measurement();
    let report = |report: &Result<Joined, String>| print_line(serde_json::to_string(report)?);
    if let Err(failure) = measure(args, report) {
        report(&Err(failure.to_string()))?;
    }
    Ok(())
}

fn measure(
    args: &RendezvousNodesArgs,
    report: impl Fn(&Result<Joined, String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (to_inbox, inbox) = channel();
    let start = Arc::new(Barrier::new(args.count + 1));
    let mut nodes = Vec::with_capacity(args.count);
    for number in args.first..args.first.saturating_add(args.count) {
        let node = Node::connect(&args.job, number).with_context(|| format!("node {number}"))?;
        let node = Arc::new(node);
        let (joining, start, to_inbox) = (Arc::clone(&node), Arc::clone(&start), to_inbox.clone());
        thread::Builder::new()
            .name(format!("bench-node-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                start.wait();
                let round = joining.handler.next_rendezvous();
                // The main thread ends at the first failure.
                let _ = to_inbox.send((number, now(), round));
            })
            .with_context(|| {
                format!("cannot start a thread for node {number} (ulimit -u, kernel.pid_max)")
            })?;
        nodes.push(node);
    }
    // So that the inbox ends if a thread panics.
    drop(to_inbox);
    report(&Ok(Joined::default()))?;
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .context("no start signal")?;
    start.wait();
    let mut joined = Joined::default();
    for (number, at, round) in inbox {
        let round = round.with_context(|| format!("node {number}"))?;
        let world = World {
            round: round.round,
            nodes: round.world_size,
            master: round.bootstrap.master.to_string(),
        };
        joined.add(round.rank, world, at);
    }
    for node in &nodes {
        joined.writes_tried += node.traffic.writes_tried();
        joined.writes_done += node.traffic.writes_done();
        joined.state_bytes += node.traffic.bytes();
    }
    report(&Ok(joined))?;
    park()
}
