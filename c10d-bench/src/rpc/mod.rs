//! `c10d-bench rpc`: the cost of a call between two workers, beside a bare TCP echo.
//!
//! The two workers share one process, or have one each. Each round measures agents and echo one right after
//! the other, so that other load affects both; ratios are of the same round.

mod agents;
mod echo;
pub(super) mod echo_client;
mod peer;

use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use rpc_agent::Secret;

use self::agents::{AgentPair, EXPIRING};
use self::echo::EchoPair;
use self::echo_client::EchoClient;
use self::peer::PeerKind;
pub(super) use self::peer::RpcPeerArgs;
use crate::affinity::Cores;
use crate::failure::{Context as _, Failure};
use crate::latency::percentiles;
use crate::numbers::{PayloadBytes, at_most};
use crate::pair::{GOAL_IN_FLIGHT, IN_FLIGHT_MAX, PairArgs, Place};
use crate::report::{Goal, Report, Row, Unit};
use crate::rpc::echo_client::wrong_answer;

/// The payload to which goals apply.
const GOAL_PAYLOAD_BYTES: usize = 64;

/// Measures calls of an echo function between two workers: in one process and in two, one call at a time and
/// many, beside a bare TCP echo.
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

/// The agents and the echo of one place, all connected.
struct Comparison {
    place: Place,
    agents: AgentPair,
    echo: EchoPair,
    secured: Option<AgentPair>,
}

/// What is measured in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Agents,
    Echo,
    /// The agents with a secret.
    Secured,
}

/// The median and the 99th percentile of a round trip, and the throughput.
type Figures = [Row; 3];

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

fn measure(args: &RpcBenchArgs, cores: Option<Cores>) -> Result<Vec<Row>, Failure> {
    let time = args.pair.time();
    let secret = if args.secret {
        Some(Secret::random()?)
    } else {
        None
    };
    let secret = secret.as_ref();
    let mut comparisons = [
        Comparison {
            place: Place::OneProcess,
            agents: AgentPair::in_process(cores, None)?,
            echo: EchoPair::in_process(cores)?,
            secured: secret
                .map(|secret| AgentPair::in_process(cores, Some(secret)))
                .transpose()?,
        },
        Comparison {
            place: Place::TwoProcesses,
            agents: AgentPair::two_processes(cores, None)?,
            echo: EchoPair::two_processes(cores)?,
            secured: secret
                .map(|secret| AgentPair::two_processes(cores, Some(secret)))
                .transpose()?,
        },
    ];
    let mut measurements = Vec::new();
    for (index, comparison) in comparisons.iter_mut().enumerate() {
        for payload in &args.payload {
            let payload = payload_of(payload.0);
            comparison.warm_up(&payload, args.in_flight, time / 2)?;
            let rows = comparison.rows(payload.len(), args.in_flight);
            measurements.push((index, payload, rows));
        }
    }
    let mut expiry = ["p50", "p99", "max"].map(|figure| {
        let name = format!("two processes {EXPIRING} timeouts late {figure}");
        Row::new(name, Unit::Microseconds)
    });
    for round in 0..args.pair.rounds {
        for (index, payload, rows) in &mut measurements {
            comparisons[*index].measure(payload, args.in_flight, time, round, rows)?;
        }
        let mut late = comparisons[1].agents.expire(time)?;
        let [p50, p99] = percentiles(&mut late);
        let max = late.iter().max().map_or(0.0, |max| max.as_secs_f64() * 1e6);
        for (row, value) in expiry.iter_mut().zip([p50, p99, max]) {
            row.samples.push(value);
        }
    }
    let rows = measurements
        .into_iter()
        .flat_map(|(_, _, (rows, secured))| rows.into_iter().chain(secured.into_iter().flatten()));
    Ok(rows.chain(expiry).collect())
}

impl Comparison {
    /// The figures of the agents, and of those with a secret.
    fn rows(&self, payload_bytes: usize, in_flight: usize) -> (Figures, Option<Figures>) {
        let is_goal = self.place == Place::TwoProcesses && payload_bytes == GOAL_PAYLOAD_BYTES;
        let mut rows = self.figures(payload_bytes, in_flight, "");
        if is_goal {
            rows[0].goal = Some(Goal::RatioAtMost(1.3));
            rows[2].goal = (in_flight == GOAL_IN_FLIGHT).then_some(Goal::AtLeast(250e3));
        }
        let secured = self.secured.as_ref().map(|_| {
            let mut rows = self.figures(payload_bytes, in_flight, "secret ");
            rows[0].goal = is_goal.then_some(Goal::RatioAtMost(1.35));
            rows
        });
        (rows, secured)
    }

    fn figures(&self, payload_bytes: usize, in_flight: usize, kind: &str) -> Figures {
        let name = |figure: &str| {
            let mut bytes = PayloadBytes(payload_bytes).to_string();
            if !bytes.ends_with('B') {
                bytes.push_str(" B");
            }
            format!("{} {bytes} {kind}{figure}", self.place.name())
        };
        [
            Row::new(name("p50"), Unit::Microseconds),
            Row::new(name("p99"), Unit::Microseconds),
            Row::new(name(&format!("x {in_flight}")), Unit::OperationsPerSecond),
        ]
    }

    /// Compares an answer byte by byte, then fills caches and buffers.
    fn warm_up(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<(), Failure> {
        for side in self.sides(0) {
            let side = self.side(side);
            if side.echo(payload)? != payload {
                return Err(wrong_answer(payload));
            }
            side.one_at_a_time(payload, time)?;
            side.many_at_a_time(payload, in_flight, time)?;
        }
        Ok(())
    }

    /// One round. The order of the sides alternates.
    fn measure(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
        round: usize,
        (rows, secured): &mut (Figures, Option<Figures>),
    ) -> Result<(), Failure> {
        let mut push = |side: Side, figure: usize, value: f64| {
            if side != Side::Secured {
                rows[figure].push(side == Side::Echo, value);
            }
            if side != Side::Echo
                && let Some(secured) = secured
            {
                secured[figure].push(side == Side::Agents, value);
            }
        };
        for side in self.sides(round) {
            let mut times = self.side(side).one_at_a_time(payload, time)?;
            let [p50, p99] = percentiles(&mut times);
            push(side, 0, p50);
            push(side, 1, p99);
        }
        for side in self.sides(round) {
            let began = Instant::now();
            let answered = self.side(side).many_at_a_time(payload, in_flight, time)?;
            let per_second = answered as f64 / began.elapsed().as_secs_f64();
            push(side, 2, per_second);
        }
        Ok(())
    }

    /// The agents next to those that they are compared with.
    fn sides(&self, round: usize) -> Vec<Side> {
        let mut sides = vec![Side::Echo, Side::Agents];
        sides.extend(self.secured.as_ref().map(|_| Side::Secured));
        if round.is_multiple_of(2) {
            sides.reverse();
        }
        sides
    }

    fn side(&mut self, side: Side) -> &mut dyn EchoClient {
        match (side, &mut self.secured) {
            (Side::Secured, Some(secured)) => secured,
            (Side::Echo, _) => &mut self.echo,
            (Side::Agents | Side::Secured, _) => &mut self.agents,
        }
    }
}

/// Different neighbouring bytes, so that lost or repeated bytes are noticed.
fn payload_of(bytes: usize) -> Bytes {
    // The period 251 is prime, so it divides no buffer size.
    (0..bytes).map(|index| (index % 251) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_pair(side: &mut dyn EchoClient) {
        let moment = Duration::from_millis(1);
        for bytes in [0, 64, 1 << 20] {
            let payload = payload_of(bytes);
            assert_eq!(side.echo(&payload).unwrap(), payload);
            let times = side.one_at_a_time(&payload, moment).unwrap();
            assert!(!times.is_empty());
            assert!(side.many_at_a_time(&payload, 5, moment).unwrap() >= 5);
            // No answer is left unread.
            assert_eq!(side.echo(&payload).unwrap(), payload);
        }
    }

    #[test]
    fn two_agents_in_one_process_echo() {
        check_pair(&mut AgentPair::in_process(None, None).unwrap());
    }

    #[test]
    fn two_agents_with_a_secret_echo() {
        let secret = Secret::random().unwrap();
        check_pair(&mut AgentPair::in_process(None, Some(&secret)).unwrap());
    }

    #[test]
    fn the_bare_echo_echoes_and_its_thread_ends_with_it() {
        check_pair(&mut EchoPair::in_process(None).unwrap());
    }
}
