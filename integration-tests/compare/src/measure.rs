//! Runs the measurements.
//!
//! Each round measures every figure once for each rival, one rival right after the other, so that other load on the
//! machine affects all rivals equally.

use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;

use crate::child::Server;
use crate::error::CompareError;
use crate::placement::{self, Placement};
use crate::plan::{LOADS, Load, Plan};
use crate::report::{Report, Row};
use crate::rival::Rival;
use crate::rivals::{self, Client};

/// A rival with a running server and a connected client.
struct Contestant {
    rival: Rival,
    client: Box<dyn Client>,
    /// Dropped after the client, which would otherwise report a lost connection.
    _server: Server,
}

/// Measures these rivals, or all if none is named.
pub(crate) fn run(
    plan: &Plan,
    placement: Placement,
    only: &[Rival],
) -> Result<Report, CompareError> {
    let cores = placement::cores();
    placement.enter()?;
    let mut contestants = Vec::new();
    for &rival in Rival::value_variants() {
        if only.is_empty() || only.contains(&rival) {
            let server = Server::start(rival, placement)?;
            let client = rivals::connect(rival, server.address())?;
            contestants.push(Contestant {
                rival,
                client,
                _server: server,
            });
        }
    }
    let rivals: Vec<Rival> = contestants.iter().map(|each| each.rival).collect();

    let mut rows = Vec::new();
    for load in LOADS {
        let payload = payload(load.payload_bytes);
        for contestant in &mut contestants {
            contestant.warm_up(&payload, load, plan.warm_up)?;
        }
        rows.push(Row::of_load(load, &rivals));
    }
    for round in 0..usize::from(plan.rounds) {
        for (rows, load) in rows.iter_mut().zip(LOADS) {
            let [p50, p99, throughput] = rows;
            let payload = payload(load.payload_bytes);
            // Each round starts with another rival, so that none always runs first.
            for turn in 0..contestants.len() {
                let index = (turn + round) % contestants.len();
                let client = &mut contestants[index].client;
                let mut latencies = client.one_in_flight(&payload, plan.time)?;
                let [median, tail] = percentiles(&mut latencies);
                p50.push(index, median);
                p99.push(index, tail);
            }
            for turn in 0..contestants.len() {
                let index = (turn + round) % contestants.len();
                let measured =
                    contestants[index]
                        .client
                        .window(&payload, load.in_flight, plan.time)?;
                let per_second = measured.calls as f64 / measured.elapsed.as_secs_f64();
                throughput.push(index, throughput.unit.of_calls(per_second, load));
            }
        }
    }
    Ok(Report {
        cores,
        placement,
        plan: *plan,
        rows: rows.into_iter().flatten().collect(),
    })
}

impl Contestant {
    /// Compares one answer byte by byte, then runs calls to warm up caches, windows and allocators.
    fn warm_up(&mut self, payload: &Bytes, load: Load, time: Duration) -> Result<(), CompareError> {
        let answer = self.client.echo(payload)?;
        if answer != payload {
            return Err(CompareError::WrongAnswer {
                rival: self.rival,
                detail: format!("other bytes than the {} sent", payload.len()),
            });
        }
        self.client.one_in_flight(payload, time)?;
        self.client.window(payload, load.in_flight, time)?;
        Ok(())
    }
}

/// Bytes that differ from their neighbours, so that a comparison detects lost and duplicated bytes.
fn payload(length: usize) -> Bytes {
    // 251 is prime: no buffer's size is a multiple of the period.
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// The median and the 99th percentile in microseconds.
fn percentiles(latencies: &mut [Duration]) -> [f64; 2] {
    latencies.sort_unstable();
    // A client measures at least one.
    let last = latencies.len() - 1;
    [last / 2, last * 99 / 100].map(|index| latencies[index].as_nanos() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut latencies: Vec<_> = (1..=201).rev().map(Duration::from_micros).collect();
        assert_eq!(percentiles(&mut latencies), [101.0, 199.0]);
        assert_eq!(percentiles(&mut [Duration::from_micros(7)]), [7.0, 7.0]);
    }
}
