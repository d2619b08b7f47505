//! `c10d-bench rref`: the cost of a reference to a value on another worker.
//!
//! The two workers have a process each; the first creates, fetches and drops values owned by the second. Latencies are
//! shown beside the latencies of a plain call in the same round. A measurement of many references ends when the owner has
//! confirmed their deletion, not when the last handle is dropped.

mod workers;

use std::time::{Duration, Instant};

use clap::Args;

use self::workers::WorkerPair;
use crate::affinity::Cores;
use crate::failure::{Context as _, Failure};
use crate::pair::{IN_FLIGHT, PairArgs};
use crate::report::{Goal, Report, Row, Unit, order, percentiles};
use crate::workload::setting::at_most;

/// Each reference takes some hundred bytes on both sides.
const LIVE_MAX: usize = 10_000_000;

/// Measures references from one worker to values of another: their whole life from creation until the owner
/// frees the value, the time to create and fetch one, and the owner's memory per reference.
#[derive(Debug, Args)]
pub(crate) struct RRefBenchArgs {
    /// The number of references alive when the owner's memory is measured.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = at_most(LIVE_MAX))]
    live: usize,

    #[command(flatten)]
    pair: PairArgs,
}

pub(super) fn run(args: &RRefBenchArgs) -> Result<(), Failure> {
    let mut notes = Vec::new();
    let cores = Cores::choose(!args.pair.no_pin, &mut notes);
    notes.push("the floor is a plain call with 8 bytes each way".to_owned());
    let rows = measure(args, cores).context("cannot measure references")?;
    let report = Report {
        subject: format!("references to values of another worker, {IN_FLIGHT} alive at a time"),
        notes,
        rows,
    };
    report.print(args.pair.json)
}

/// The second process: owns values until it is killed.
pub(super) fn serve() -> Result<(), Failure> {
    workers::serve().context("cannot serve")
}

fn measure(args: &RRefBenchArgs, cores: Option<Cores>) -> Result<Vec<Row>, Failure> {
    let time = args.pair.time();
    // This is measured first, with a separate owner, because memory freed by other measurements would be
    // reused unnoticed.
    let memory = owner_memory(args.live, cores)?;
    let mut workers = WorkerPair::start(cores)?;
    // Fills caches and buffers.
    workers.plain_calls(time / 2)?;
    workers.create_and_fetch(time / 2)?;
    workers.lives(IN_FLIGHT, time / 2)?;
    let name = |figure: &str| format!("two processes {figure}");
    let lives = name(&format!("create fetch drop x {IN_FLIGHT}"));
    let mut lives = Row::new(lives, Unit::OperationsPerSecond);
    let mut median = Row::new(name("create fetch p50"), Unit::Microseconds);
    let mut tail = Row::new(name("create fetch p99"), Unit::Microseconds);
    lives.goal = Some(Goal::AtLeast(30e3));
    median.goal = Some(Goal::RatioAtMost(2.2));
    for round in 0..args.pair.rounds {
        for is_floor in order(round) {
            let mut times = match is_floor {
                true => workers.plain_calls(time)?,
                false => workers.create_and_fetch(time)?,
            };
            let [p50, p99] = percentiles(&mut times);
            median.push(is_floor, p50);
            tail.push(is_floor, p99);
        }
        let began = Instant::now();
        let lived = workers.lives(IN_FLIGHT, time)?;
        lives.push(false, lived as f64 / began.elapsed().as_secs_f64());
    }
    Ok([lives, median, tail].into_iter().chain(memory).collect())
}

/// The owner's memory per live reference, including its value of 8 bytes. `None` without /proc.
fn owner_memory(live: usize, cores: Option<Cores>) -> Result<Option<Row>, Failure> {
    let mut workers = WorkerPair::start(cores)?;
    workers.lives(1, Duration::ZERO)?;
    let before = workers.owner_bytes();
    let alive = workers.create_and_keep(live)?;
    let after = workers.owner_bytes();
    drop(alive);
    workers.wait_until_freed()?;
    let (Some(before), Some(after)) = (before, after) else {
        return Ok(None);
    };
    let mut row = Row::new("owner memory per reference", Unit::Bytes);
    let grown = after.saturating_sub(before) as f64;
    row.samples.push(grown / live as f64);
    Ok(Some(row))
}
