//! `c10d-bench store`: selects the server and the workloads.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use c10d_socket::HostPort;
use clap::{Args, ValueEnum};

use crate::affinity::Cores;
use crate::failure::{Context as _, Failure};
use crate::numbers::{at_least_one, round_seconds};
use crate::open_files;
use crate::process::Process;
use crate::report::{Goal, Report};
use crate::store_server::{Access, StoreServer};
use crate::workload::client::client;
use crate::workload::durable::durable;
use crate::workload::etcd::{EtcdShape, etcd};
use crate::workload::large::large_values;
use crate::workload::ping::ping;
use crate::workload::prefix::prefix;
use crate::workload::ranks::{RanksShape, ranks};
use crate::workload::secret::secret;
use crate::workload::setting::Setting;
use crate::workload::strangers::strangers;
use crate::workload::throughput::{Kind, Throughput};

/// Measures a store server from one thread. Without --connect it starts a server, on a core of its own.
///
/// Writes keys that start with `bench/`, and `init/`: never use it on the store of a running job.
#[derive(Debug, Args)]
pub(crate) struct StoreBenchArgs {
    /// Measures this server instead of a new one.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<HostPort>,

    /// The process id of that server, to read its memory and processor time.
    #[arg(long, value_name = "PID", requires = "connect")]
    server_pid: Option<u32>,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,

    /// Runs only this workload; can be repeated.
    #[arg(long, value_enum)]
    only: Vec<Workload>,

    /// The number of ranks of `ranks`.
    #[arg(long, value_name = "N", default_value_t = 16_000, value_parser = at_least_one)]
    ranks: usize,

    /// How long a round lasts.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = round_seconds)]
    seconds: f64,

    /// The number of rounds after a warm-up; figures are medians of the rounds. At most 3 for `sweep` and
    /// `ranks`.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,

    /// The numbers of connections of `sweep`.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 16, 256], value_parser = at_least_one)]
    connections: Vec<usize>,

    /// The numbers of requests in flight per connection of `sweep`.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 16], value_parser = at_least_one)]
    depth: Vec<usize>,

    /// The number of keys that `durable` finds again.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    reopened_keys: usize,

    /// The number of keys that `prefix` deletes.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    deleted_keys: usize,

    /// The number of nodes of `etcd` that join a rendezvous.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one)]
    etcd_nodes: usize,

    /// How long `etcd` counts the calls of a job at rest: a server that stands by asks every 45 s.
    #[arg(long, value_name = "SECONDS", default_value_t = 45, value_parser = clap::value_parser!(u64).range(1..=3600))]
    etcd_rest: u64,

    /// The length of the values of `set-get`.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    value_bytes: usize,

    /// How many connections are opened at a time. Keep it well below the server's backlog.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    connect_window: usize,

    /// Does not measure the floor.
    #[arg(long)]
    no_floor: bool,

    /// Does not pin the processes to cores.
    #[arg(long)]
    no_pin: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Round trips on one connection, beside those to a bare echo server.
    Ping,
    /// PING, GET and SET of the client library, on one connection.
    Client,
    /// 64 connections with one ADD in flight each.
    Add,
    /// 64 connections with 16 pairs of SET and GET in flight each.
    SetGet,
    /// ADD with other numbers of connections and requests in flight.
    Sweep,
    /// Thousands of ranks that connect, meet in barriers, wait, and cancel.
    Ranks,
    /// A 4 MiB value, written and read.
    Large,
    /// A million keys deleted by their prefix, and PING meanwhile. Left out with --connect.
    Prefix,
    /// `set-get`, PING and new connections with a shared secret, beside plain ones to the same server. Starts a server
    /// of its own, so it is left out with --connect.
    Secret,
    /// ADD, SET and GET of a server with a journal, beside one without, and how soon its keys are there again after
    /// the server was killed. Left out with --connect.
    Durable,
    /// A store in etcd: what its requests cost, and how long they wait when a server or a member of etcd is lost. Starts
    /// three members of the program that C10D_ETCD names, and takes minutes: runs only if it is named.
    Etcd,
    /// PING with a secret while strangers open 10,000 connections a second. Left out with --connect.
    Strangers,
}

const ALL: [Workload; 12] = [
    Workload::Ping,
    Workload::Client,
    Workload::Add,
    Workload::SetGet,
    Workload::Sweep,
    // Before the large values: their freed memory would hide what the ranks need.
    Workload::Ranks,
    Workload::Large,
    Workload::Prefix,
    Workload::Secret,
    Workload::Strangers,
    Workload::Durable,
    Workload::Etcd,
];

/// Rounds of the workloads that take longest, so that a whole run takes less than a minute.
const LONG_WORKLOAD_ROUNDS_MAX: usize = 3;

pub(super) fn run(args: &StoreBenchArgs) -> Result<(), Failure> {
    measure(args)?.print(args.json)
}

fn measure(args: &StoreBenchArgs) -> Result<Report, Failure> {
    let mut notes = Vec::new();
    // Before the server starts, which inherits the limit.
    let files_left = open_files::raise_limit();
    let cores = Cores::choose(!args.no_pin, &mut notes);
    // The child must live as long as the measurement.
    let (subject, server, process, _child) = match &args.connect {
        Some(target) => {
            let subject = format!("the server at {target}");
            (
                subject,
                resolve(target)?,
                args.server_pid.map(Process),
                None,
            )
        }
        None => {
            let child = StoreServer::start(cores, Access::Open)?;
            let subject = "a new server".to_owned();
            (subject, child.address(), Some(child.process()), Some(child))
        }
    };
    let setting = Setting {
        server,
        process,
        cores,
        floor: !args.no_floor && server.ip().is_loopback(),
        rounds: args.rounds,
        round_time: Duration::from_secs_f64(args.seconds),
        connect_window: args.connect_window,
    };
    if !setting.floor {
        notes.push("no floor was measured".to_owned());
    }

    let mut rows = Vec::new();
    for workload in ALL {
        if !args.only.is_empty() && !args.only.contains(&workload) {
            continue;
        }
        let needs_ours = matches!(
            workload,
            Workload::Secret
                | Workload::Strangers
                | Workload::Durable
                | Workload::Etcd
                | Workload::Prefix
        );
        let is_left_out = workload == Workload::Etcd && args.only.is_empty();
        if is_left_out || needs_ours && args.connect.is_some() {
            continue;
        }
        match workload {
            Workload::Ping => rows.extend(ping(&setting)?),
            Workload::Client => rows.extend(client(&setting)?),
            Workload::Add => rows.push(add_64().measure(&setting)?),
            Workload::SetGet => rows.push(set_get_64(args.value_bytes).measure(&setting)?),
            Workload::Sweep => {
                let setting = Setting {
                    rounds: args.rounds.min(LONG_WORKLOAD_ROUNDS_MAX),
                    ..setting
                };
                for point in sweep(args) {
                    rows.push(point.measure(&setting)?);
                }
            }
            Workload::Large => rows.extend(large_values(&setting)?),
            Workload::Prefix => {
                let setting = Setting {
                    rounds: args.rounds.min(LONG_WORKLOAD_ROUNDS_MAX),
                    ..setting
                };
                rows.extend(prefix(&setting, args.deleted_keys)?);
            }
            Workload::Strangers => rows.extend(strangers(&setting)?),
            Workload::Secret => {
                rows.extend(secret(&setting, &set_get_64(args.value_bytes))?);
            }
            Workload::Durable => {
                let set_get = set_get_64(args.value_bytes);
                rows.extend(durable(&setting, &set_get, args.reopened_keys)?);
            }
            Workload::Etcd => {
                let shape = EtcdShape {
                    nodes: args.etcd_nodes,
                    rest: Duration::from_secs(args.etcd_rest),
                };
                rows.extend(etcd(&setting, shape)?);
            }
            Workload::Ranks => {
                let shape = RanksShape {
                    ranks: open_files::that_fit(args.ranks, "ranks", 1, files_left, &mut notes),
                    rounds: args.rounds.min(LONG_WORKLOAD_ROUNDS_MAX),
                    has_extensions: args.connect.is_none(),
                };
                rows.extend(ranks(shape, &setting)?);
            }
        }
    }
    Ok(Report {
        subject,
        notes,
        rows,
    })
}

fn add_64() -> Throughput {
    Throughput {
        name: "add".to_owned(),
        kind: Kind::Add,
        connections: 64,
        depth: 1,
        goal: Some(Goal::RatioAtLeast(0.93)),
    }
}

fn set_get_64(value_bytes: usize) -> Throughput {
    Throughput {
        name: "set-get".to_owned(),
        kind: Kind::SetGet { value_bytes },
        connections: 64,
        depth: 16,
        // The goal was set for values of 64 bytes.
        goal: (value_bytes == 64).then_some(Goal::AtLeast(1.5e6)),
    }
}

fn sweep(args: &StoreBenchArgs) -> impl Iterator<Item = Throughput> {
    args.connections.iter().flat_map(|&connections| {
        args.depth.iter().map(move |&depth| Throughput {
            name: format!("add {connections} x {depth}"),
            kind: Kind::Add,
            connections,
            depth,
            goal: None,
        })
    })
}

fn resolve(target: &HostPort) -> Result<SocketAddr, Failure> {
    let failed = || format!("cannot look up {target}");
    let mut addresses = (target.host(), target.port())
        .to_socket_addrs()
        .with_context(failed)?;
    addresses
        .next()
        .ok_or_else(|| Failure::new(format!("{}: no address", failed())))
}
