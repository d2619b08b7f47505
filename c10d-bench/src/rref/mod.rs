//! `c10d-bench rref`: the cost of a reference to a value on another worker.
//!
//! The two workers share one process, or have one each; the first creates, fetches and drops values owned
//! by the second. Latencies are shown beside the latencies of a plain call in the same round. A measurement
//! of many references ends when both sides have freed everything, not when the last handle is dropped.

mod workers;

use std::time::{Duration, Instant};

use clap::Args;

use self::workers::WorkerPair;
use crate::affinity::Cores;
use crate::failure::{Context as _, Failure};
use crate::numbers::at_most;
use crate::pair::{GOAL_IN_FLIGHT, IN_FLIGHT_MAX, PairArgs, Place};
use crate::report::{Goal, Report, Row, Unit, order, percentiles};

/// Each reference takes some hundred bytes on both sides.
const LIVE_MAX: usize = 10_000_000;

/// Measures references from one worker to values of another: their whole life from creation until the owner
/// frees the value, the time to create and fetch one, and the owner's memory per reference.
#[derive(Debug, Args)]
pub(crate) struct RRefBenchArgs {
    /// The number of references alive at a time when throughput is measured.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_most(IN_FLIGHT_MAX))]
    in_flight: usize,

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
        subject: format!(
            "references to values of another worker, {} alive at a time",
            args.in_flight
        ),
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
    let mut comparisons = [
        (Place::OneProcess, WorkerPair::in_process(cores)?),
        (Place::TwoProcesses, WorkerPair::two_processes(cores)?),
    ]
    .map(|(place, workers)| Comparison::new(place, workers, args.in_flight));
    for comparison in &mut comparisons {
        comparison.warm_up(time / 2)?;
    }
    for round in 0..args.pair.rounds {
        for comparison in &mut comparisons {
            comparison.measure(time, round)?;
        }
    }
    let rows = comparisons
        .into_iter()
        .flat_map(|comparison| comparison.rows);
    Ok(rows.chain(memory).collect())
}

/// The owner's memory per live reference, including its value of 8 bytes. `None` without /proc.
fn owner_memory(live: usize, cores: Option<Cores>) -> Result<Option<Row>, Failure> {
    let mut workers = WorkerPair::two_processes(cores)?;
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

/// The two workers of one place, and their figures.
struct Comparison {
    workers: WorkerPair,
    in_flight: usize,
    /// Lives, and the median and 99th percentile of a creation with its fetch.
    rows: [Row; 3],
}

impl Comparison {
    fn new(place: Place, workers: WorkerPair, in_flight: usize) -> Self {
        let name = |figure: &str| format!("{} {figure}", place.name());
        let mut lives = Row::new(
            name(&format!("create fetch drop x {in_flight}")),
            Unit::OperationsPerSecond,
        );
        let mut median = Row::new(name("create fetch p50"), Unit::Microseconds);
        let tail = Row::new(name("create fetch p99"), Unit::Microseconds);
        if place == Place::TwoProcesses {
            lives.goal = (in_flight == GOAL_IN_FLIGHT).then_some(Goal::AtLeast(30e3));
            median.goal = Some(Goal::RatioAtMost(2.2));
        }
        Self {
            workers,
            in_flight,
            rows: [lives, median, tail],
        }
    }

    /// Fills caches and buffers.
    fn warm_up(&mut self, time: Duration) -> Result<(), Failure> {
        self.workers.plain_calls(time)?;
        self.workers.create_and_fetch(time)?;
        self.workers.lives(self.in_flight, time)?;
        Ok(())
    }

    /// One round: references and plain calls alternate in going first.
    fn measure(&mut self, time: Duration, round: usize) -> Result<(), Failure> {
        let Self {
            workers,
            in_flight,
            rows: [lives, median, tail],
        } = self;
        for is_floor in order(round) {
            let mut times = if is_floor {
                workers.plain_calls(time)?
            } else {
                workers.create_and_fetch(time)?
            };
            let [p50, p99] = percentiles(&mut times);
            median.push(is_floor, p50);
            tail.push(is_floor, p99);
        }
        let began = Instant::now();
        let lived = workers.lives(*in_flight, time)?;
        lives.push(false, lived as f64 / began.elapsed().as_secs_f64());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_references_are_all_freed() {
        let moment = Duration::from_millis(1);
        let mut workers = WorkerPair::in_process(None).unwrap();
        assert!(!workers.plain_calls(moment).unwrap().is_empty());
        assert!(!workers.create_and_fetch(moment).unwrap().is_empty());
        assert!(workers.lives(5, moment).unwrap() >= 5);
        assert_eq!(workers.owned().unwrap(), 0);
    }

    #[test]
    fn the_owner_keeps_a_value_until_its_reference_is_dropped() {
        let mut workers = WorkerPair::in_process(None).unwrap();
        let alive = workers.create_and_keep(300).unwrap();
        assert_eq!((alive.len(), workers.owned().unwrap()), (300, 300));
        drop(alive);
        workers.wait_until_freed().unwrap();
        assert_eq!(workers.owned().unwrap(), 0);
    }
}
