//! `c10d-bench store`: selects the server and the workloads.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use c10d_socket::HostPort;
use clap::{Args, ValueEnum};

use crate::affinity::Cores;
use crate::failure::{Context as _, Failure};
use crate::process::{self, Process};
use crate::report::{Goal, Report, Row};
use crate::servers::StoreServer;
use crate::workload::client::{large_values, ping};
use crate::workload::durable::durable;
use crate::workload::etcd::etcd;
use crate::workload::ranks::ranks;
use crate::workload::setting::{Setting, at_least_one, round_seconds};
use crate::workload::throughput::{Kind, Throughput};

/// Measures a store server from one thread. Without --connect it starts a server, on a separate core.
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

    /// The number of rounds after a warm-up; figures are medians of the rounds. At most 3 for `ranks`.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,

    /// The number of keys that `durable` finds again.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    reopened_keys: usize,

    /// Does not pin the processes to cores.
    #[arg(long)]
    no_pin: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Round trips on one connection.
    Ping,
    /// 64 connections with one ADD in flight each.
    Add,
    /// 64 connections with 16 pairs of SET and GET in flight each.
    SetGet,
    /// Thousands of ranks that connect, meet in barriers, wait, and cancel.
    Ranks,
    /// A 4 MiB value, written and read. After the ranks: its freed memory would hide what they need.
    Large,
    /// ADD, SET and GET of a server with a journal, beside one without, and how soon its keys are there again after
    /// the server was killed. Left out with --connect.
    Durable,
    /// A store in etcd: the cost of its requests, and how long they wait when the server is lost. Starts three
    /// members of the program that C10D_ETCD names, and takes minutes: runs only if it is named.
    Etcd,
}

/// Rounds of the workload that takes longest, so that a whole run takes less than a minute.
const LONG_WORKLOAD_ROUNDS_MAX: usize = 3;

pub(super) fn run(args: &StoreBenchArgs) -> Result<(), Failure> {
    measure(args)?.print(args.json)
}

fn measure(args: &StoreBenchArgs) -> Result<Report, Failure> {
    let mut notes = Vec::new();
    // Before the server starts, which inherits the limit.
    let files_left = process::raise_limit();
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
            let child = StoreServer::start(cores, false)?;
            let subject = "a new server".to_owned();
            (subject, child.address(), Some(child.process()), Some(child))
        }
    };
    let setting = Setting {
        server,
        process,
        cores,
        rounds: args.rounds,
        round_time: Duration::from_secs_f64(args.seconds),
    };
    let mut rows = Vec::new();
    for workload in Workload::value_variants() {
        if !args.only.is_empty() && !args.only.contains(workload) {
            continue;
        }
        let needs_ours = matches!(workload, Workload::Durable | Workload::Etcd);
        let is_left_out = *workload == Workload::Etcd && args.only.is_empty();
        if is_left_out || needs_ours && args.connect.is_some() {
            continue;
        }
        match workload {
            Workload::Ping => rows.extend(ping(&setting)?),
            Workload::Add => rows.push(alone(&setting, &add_64())?),
            Workload::SetGet => rows.push(alone(&setting, &set_get_64())?),
            Workload::Large => rows.extend(large_values(&setting)?),
            Workload::Durable => {
                rows.extend(durable(&setting, &set_get_64(), args.reopened_keys)?);
            }
            Workload::Etcd => rows.extend(etcd(&setting)?),
            Workload::Ranks => {
                let setting = Setting {
                    rounds: args.rounds.min(LONG_WORKLOAD_ROUNDS_MAX),
                    ..setting
                };
                let fit = process::that_fit(args.ranks, "ranks", 1, files_left, &mut notes);
                rows.extend(ranks(fit, &setting)?);
            }
        }
    }
    Ok(Report {
        subject,
        notes,
        rows,
    })
}

fn alone(setting: &Setting, throughput: &Throughput) -> Result<Row, Failure> {
    let fleet = setting.fleet(throughput.connections)?;
    throughput.measure(setting, fleet, None)
}

fn add_64() -> Throughput {
    Throughput {
        name: "add".to_owned(),
        kind: Kind::Add,
        connections: 64,
        depth: 1,
        goal: None,
    }
}

fn set_get_64() -> Throughput {
    Throughput {
        name: "set-get".to_owned(),
        kind: Kind::SetGet,
        connections: 64,
        depth: 16,
        goal: Some(Goal::AtLeast(1.5e6)),
    }
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
