//! `c10d-bench rpc`: the cost of a call between two workers in two processes, beside a bare TCP echo.
//!
//! Each round measures agents and echo one right after the other, so that other load affects both; ratios are of the same
//! round. Many calls at a time have no floor: `integration-tests/compare` has a bare connection beside them.

mod agents;
mod echo;
mod peer;

use std::time::Instant;

use bytes::Bytes;
use clap::Args;
use rpc_agent::Secret;

use self::agents::AgentPair;
use self::echo::EchoPair;
pub(super) use self::peer::RpcPeerArgs;
use self::peer::{EchoClient, PeerKind};
use crate::affinity::Cores;
use crate::failure::{Context as _, Failure};
use crate::numbers::{PayloadBytes, at_most};
use crate::pair::wrong_answer;
use crate::pair::{GOAL_IN_FLIGHT, IN_FLIGHT_MAX, PairArgs, Place};
use crate::report::{Goal, Report, Row, Unit, order, percentiles};

/// The payload to which goals apply.
const GOAL_PAYLOAD_BYTES: usize = 64;

/// Measures calls of an echo function between two workers in two processes: one call at a time, beside a bare TCP echo,
/// and many.
#[derive(Debug, Args)]
pub(crate) struct RpcBenchArgs {
    /// The lengths of the payloads, measured one after the other.
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',', default_values_t = [PayloadBytes(64), PayloadBytes(1 << 10), PayloadBytes(1 << 20)])]
    payload: Vec<PayloadBytes>,

    /// The number of calls in flight when throughput is measured.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_most(IN_FLIGHT_MAX))]
    in_flight: usize,

    /// Also measures calls with a secret (TLS), beside the same calls without one.
    #[arg(long)]
    secret: bool,

    #[command(flatten)]
    pair: PairArgs,
}

pub(super) fn run(args: &RpcBenchArgs) -> Result<(), Failure> {
    let mut notes = Vec::new();
    let cores = Cores::choose(!args.pair.no_pin, &mut notes);
    notes.push("the floor is a bare TCP echo, one thread on each side".to_owned());
    if args.secret {
        notes.push("the floor of calls with a secret is the same call without one".to_owned());
    }
    let rows = measure(args, cores).context("cannot measure calls")?;
    let report = Report {
        subject: format!("calls between two workers, {} in flight", args.in_flight),
        notes,
        rows,
    };
    report.print(args.pair.json)
}

/// The second process: serves until it is killed, or its client disconnects.
pub(super) fn serve(args: &RpcPeerArgs) -> Result<(), Failure> {
    match args.kind {
        PeerKind::Agent => agents::serve(false),
        PeerKind::AgentWithSecret => agents::serve(true),
        PeerKind::Echo => echo::serve(),
    }
    .context("cannot serve")
}

/// The median and the 99th percentile of a round trip, and the throughput.
type Figures = [Row; 3];

fn measure(args: &RpcBenchArgs, cores: Option<Cores>) -> Result<Vec<Row>, Failure> {
    let mut echo = EchoPair::two_processes(cores)?;
    let mut agents = AgentPair::two_processes(cores, None)?;
    let mut secured = None;
    if args.secret {
        secured = Some(AgentPair::two_processes(cores, Some(&Secret::random()?))?);
    }
    let mut rows = Vec::new();
    for payload in &args.payload {
        let payload = payload_of(payload.0);
        rows.extend(figures(args, &payload, "", &mut agents, &mut echo)?);
        if let Some(secured) = &mut secured {
            rows.extend(figures(args, &payload, "secret ", secured, &mut agents)?);
        }
    }
    Ok(rows)
}

/// Calls of one kind, beside a floor.
fn figures(
    args: &RpcBenchArgs,
    payload: &Bytes,
    kind: &str,
    agents: &mut AgentPair,
    floor: &mut dyn EchoClient,
) -> Result<Figures, Failure> {
    let time = args.pair.time();
    for side in [&mut *floor, agents] {
        // Compares an answer byte by byte, then fills caches and buffers.
        if side.echo(payload)? != payload {
            return Err(wrong_answer(payload));
        }
        side.one_at_a_time(payload, time / 2)?;
    }
    agents.many_at_a_time(payload, args.in_flight, time / 2)?;
    let mut rows = rows(args, payload.len(), kind);
    for round in 0..args.pair.rounds {
        for is_floor in order(round) {
            let side: &mut dyn EchoClient = if is_floor { &mut *floor } else { agents };
            let [p50, p99] = percentiles(&mut side.one_at_a_time(payload, time)?);
            rows[0].push(is_floor, p50);
            rows[1].push(is_floor, p99);
        }
        let began = Instant::now();
        let answered = agents.many_at_a_time(payload, args.in_flight, time)?;
        rows[2].push(false, answered as f64 / began.elapsed().as_secs_f64());
    }
    Ok(rows)
}

fn rows(args: &RpcBenchArgs, payload_bytes: usize, kind: &str) -> Figures {
    let mut bytes = PayloadBytes(payload_bytes).to_string();
    if !bytes.ends_with('B') {
        bytes.push_str(" B");
    }
    let name = |figure: &str| format!("{} {bytes} {kind}{figure}", Place::TwoProcesses.name());
    let mut rows = [
        Row::new(name("p50"), Unit::Microseconds),
        Row::new(name("p99"), Unit::Microseconds),
        Row::new(
            name(&format!("x {}", args.in_flight)),
            Unit::OperationsPerSecond,
        ),
    ];
    if payload_bytes == GOAL_PAYLOAD_BYTES {
        let ratio_max = if kind.is_empty() { 1.3 } else { 1.35 };
        rows[0].goal = Some(Goal::RatioAtMost(ratio_max));
        let is_goal = kind.is_empty() && args.in_flight == GOAL_IN_FLIGHT;
        rows[2].goal = is_goal.then_some(Goal::AtLeast(250e3));
    }
    rows
}

/// Different neighbouring bytes, so that lost or repeated bytes are noticed.
fn payload_of(bytes: usize) -> Bytes {
    // The period 251 is prime, so it divides no buffer size.
    (0..bytes).map(|index| (index % 251) as u8).collect()
}
