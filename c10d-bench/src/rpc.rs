//! `c10d-bench rpc`: the cost of a call between two workers in two processes.
//!
//! `integration-tests/compare` measures the same calls beside a bare TCP echo and other frameworks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::Store;
use clap::Args;
use rpc_agent::{Agent, FutureMessage, Registry, WorkerInfo};

use crate::affinity::Cores;
use crate::failure::{Context as _, Failure};
use crate::pair::{self, wrong_answer};
use crate::pair::{IN_FLIGHT, Pair, PairArgs, Role, check_length, server_of, start_agent};
use crate::report::{Goal, Report, Row, Unit, measure_in_turn, percentiles, repeat};

const FUNCTION: &str = "echo";

/// The lengths of the payloads, and their names.
const PAYLOADS: [(usize, &str); 3] = [(64, "64 B"), (1 << 10, "1KiB"), (1 << 20, "1MiB")];

/// Measures calls of an echo function between two workers in two processes: one call at a time, and many.
#[derive(Debug, Args)]
pub(crate) struct RpcBenchArgs {
    #[command(flatten)]
    pair: PairArgs,
}

pub(super) fn run(args: &RpcBenchArgs) -> Result<(), Failure> {
    let mut notes = Vec::new();
    let cores = Cores::choose(!args.pair.no_pin, &mut notes);
    let rows = measure(&args.pair, cores).context("cannot measure calls")?;
    let report = Report {
        subject: format!("calls between two workers, {IN_FLIGHT} in flight"),
        notes,
        rows,
    };
    report.print(args.pair.json)
}

/// The second process: serves until it is killed.
pub(super) fn serve() -> Result<(), Failure> {
    pair::serve(start).context("cannot serve")
}

fn start(role: Role, store: Arc<dyn Store>) -> Result<Agent, Failure> {
    let mut registry = Registry::new();
    registry.register_bytes(FUNCTION, |_, payload| Ok(payload))?;
    start_agent(role, registry, store)
}

fn measure(args: &PairArgs, cores: Option<Cores>) -> Result<Vec<Row>, Failure> {
    let pair = Pair::start(cores, "rpc-peer", start)?;
    let caller = Caller {
        server: server_of(&pair.client)?,
        agent: &pair.client,
    };
    let time = args.time();
    let mut rows = Vec::new();
    for (bytes, name) in PAYLOADS {
        let payload = payload_of(bytes);
        // Later answers are compared by their length alone.
        if caller.send(&payload).wait()? != payload {
            return Err(wrong_answer(&payload));
        }
        let name = |figure: &str| format!("two processes {name} {figure}");
        let mut figures = [
            Row::new(name("p50"), Unit::Microseconds),
            Row::new(name("p99"), Unit::Microseconds),
            Row::new(name(&format!("x {IN_FLIGHT}")), Unit::OperationsPerSecond),
        ];
        figures[2].goal = (bytes == 64).then_some(Goal::AtLeast(250e3));
        measure_in_turn(&mut figures, args.rounds, false, |_| {
            let [p50, p99] = percentiles(&mut caller.one_at_a_time(&payload, time)?);
            Ok([p50, p99, caller.many_at_a_time(&payload, time)?])
        })?;
        rows.extend(figures);
    }
    Ok(rows)
}

/// A calling agent, and the agent that it calls.
struct Caller<'a> {
    agent: &'a Agent,
    server: WorkerInfo,
}

impl Caller<'_> {
    fn send(&self, payload: &Bytes) -> FutureMessage {
        let call = self.agent.handle().call(&self.server, FUNCTION);
        call.send_bytes(payload.clone())
    }

    /// Makes calls one after the other for `time`, at least one; returns their times.
    fn one_at_a_time(&self, payload: &Bytes, time: Duration) -> Result<Vec<Duration>, Failure> {
        repeat(time, || {
            check_length(payload, self.send(payload).wait()?.len())
        })
    }

    /// Keeps [`IN_FLIGHT`] calls in flight for `time`, then waits for the remaining answers; returns the answers per second.
    fn many_at_a_time(&self, payload: &Bytes, time: Duration) -> Result<f64, Failure> {
        let began = Instant::now();
        let mut waiting: VecDeque<_> = (0..IN_FLIGHT).map(|_| self.send(payload)).collect();
        let mut answered = 0.0;
        while let Some(oldest) = waiting.pop_front() {
            check_length(payload, oldest.wait()?.len())?;
            answered += 1.0;
            if began.elapsed() < time {
                waiting.push_back(self.send(payload));
            }
        }
        Ok(answered / began.elapsed().as_secs_f64())
    }
}

/// Different neighbouring bytes, so that lost or repeated bytes are noticed.
fn payload_of(bytes: usize) -> Bytes {
    // The period 251 is prime, so it divides no buffer size.
    (0..bytes).map(|index| (index % 251) as u8).collect()
}
