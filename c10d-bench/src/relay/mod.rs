//! `c10d-bench relay`: a job with a relay on each node, beside a job whose ranks connect to the store themselves.
//!
//! Thousands of relays are simulated: the load generator holds a connection for each node, and speaks the protocol of
//! sessions for the node's ranks. Without relays it holds a connection for each rank. Only the latency of one rank is
//! measured with a real relay.

mod ranks;

use std::net::SocketAddr;
use std::time::Duration;

use c10d_store::{Store, StoreError, StoreExt, TcpStore};
use clap::{Args, ValueEnum};

use crate::affinity::Cores;
use crate::child::ServerChild;
use crate::failure::Failure;
use crate::process;
use crate::report::{Goal, Report, Row, Unit, measure_in_turn, percentiles, repeat};
use crate::servers::{RelayServerArgs, StoreServer};
use crate::workload::job::Shape;
use crate::workload::setting::{Setting, at_least_one, at_most, open_store, round_seconds};

/// Measures what a relay on each node changes. The floor of each figure is the same without relays.
///
/// The servers have a separate core; the load generator, which also simulates the relays, has another core.
#[derive(Debug, Args)]
pub(crate) struct RelayBenchArgs {
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,

    /// Runs only this workload; can be repeated.
    #[arg(long, value_enum)]
    only: Vec<Workload>,

    /// The number of nodes of `ranks`.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = at_least_one)]
    nodes: usize,

    /// The number of ranks of each node.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_most(RANKS_PER_NODE_MAX))]
    ranks_per_node: usize,

    /// The number of nodes of `init`.
    #[arg(long, value_name = "N", default_value_t = 12_288, value_parser = at_least_one)]
    init_nodes: usize,

    /// How long a round of `latency` lasts.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = round_seconds)]
    seconds: f64,

    /// The number of rounds; figures are medians of the rounds.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,

    /// All connections to the server use a shared secret.
    #[arg(long)]
    secret: bool,

    /// Does not pin the processes to cores.
    #[arg(long)]
    no_pin: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// GET and ADD of one rank, through a relay in a separate process on the rank's core.
    Latency,
    /// Ranks of many nodes that connect, meet in barriers and wait for one key; and the server's memory.
    Ranks,
    /// The ranks of very many nodes connect, with relays only.
    Init,
}

pub(super) fn run(args: &RelayBenchArgs) -> Result<(), Failure> {
    measure(args)?.print(args.json)
}

fn measure(args: &RelayBenchArgs) -> Result<Report, Failure> {
    let mut notes = vec!["the floor is the same without relays".to_owned()];
    // Before a server starts, which inherits the limit.
    let files_left = process::raise_limit();
    let setting = Setting {
        // Each workload starts its own.
        server: SocketAddr::from(([127, 0, 0, 1], 0)),
        process: None,
        cores: Cores::choose(!args.no_pin, &mut notes),
        rounds: args.rounds,
        round_time: Duration::from_secs_f64(args.seconds),
    };
    let ranks_per_node = args.ranks_per_node;
    let mut shape = |nodes, files_per_node| Shape {
        connections: process::that_fit(nodes, "nodes", files_per_node, files_left, &mut notes),
        ranks_per_relay: Some(ranks_per_node),
    };
    let mut rows = Vec::new();
    for workload in Workload::value_variants() {
        if !args.only.is_empty() && !args.only.contains(workload) {
            continue;
        }
        match workload {
            Workload::Latency => rows.extend(latency(&setting, args.secret)?),
            Workload::Ranks => {
                let shape = shape(args.nodes, ranks_per_node);
                rows.extend(ranks::ranks(shape, &setting, args.secret)?);
            }
            Workload::Init => {
                let shape = shape(args.init_nodes, 1);
                rows.push(ranks::init(shape, &setting, args.secret)?);
            }
        }
    }
    Ok(Report {
        subject: format!(
            "relays with {} ranks each{}",
            args.ranks_per_node,
            if args.secret { ", with a secret" } else { "" }
        ),
        notes,
        rows,
    })
}

/// The most ranks of a node: as many as one group of requests can have.
const RANKS_PER_NODE_MAX: usize = c10d_store::unstable::GROUP_CLIENTS_MAX;

const KEY: &str = "bench/relay/value";
const COUNTER: &str = "bench/relay/counter";
const VALUE: [u8; 64] = [7; 64];

/// The most that a relay adds to a round trip, in microseconds.
const ADDED_MAX: f64 = 25.0;

type Operation<'o> = &'o dyn Fn(&TcpStore) -> Result<(), StoreError>;

/// Alternates between the relay and the store: the medians of GET and ADD of each round.
pub(crate) fn latency(setting: &Setting, has_secret: bool) -> Result<[Row; 2], Failure> {
    let server = StoreServer::start(setting.cores, has_secret)?;
    let upstream = server.address().to_string();
    let command = RelayServerArgs::command_line(&upstream, server.secret_file_option());
    // Without cores: on the core of this thread.
    let relay = ServerChild::start(&command, None)?;
    let relayed = open_store(relay.address(), None)?;
    let direct = open_store(server.address(), server.credentials())?;
    direct.set(KEY, VALUE)?;

    let time = setting.round_time / 2;
    let get = |store: &TcpStore| store.get(KEY).map(drop);
    let add = |store: &TcpStore| store.add(COUNTER, 1).map(drop);
    let mut rows = ["get p50", "add p50"].map(|name| {
        let mut row = Row::new(name, Unit::Microseconds);
        row.goal = Some(Goal::AboveFloorAtMost(ADDED_MAX));
        row
    });
    measure_in_turn(&mut rows, setting.rounds, true, |is_floor| {
        let store = if is_floor { &direct } else { &relayed };
        let median = |operation: Operation<'_>| -> Result<f64, Failure> {
            Ok(percentiles(&mut repeat(time, || operation(store))?)[0])
        };
        Ok([median(&get)?, median(&add)?])
    })?;
    Ok(rows)
}
