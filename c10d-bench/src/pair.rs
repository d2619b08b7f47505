//! The two workers of a benchmark, in one process or in two, and the options of such benchmarks.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use c10d_store::{HashStore, ServerOptions, Store, TcpStoreServer};
use clap::Args;
use rpc_agent::{Agent, AgentOptions, Registry, Secret, WorkerInfo};

use crate::affinity::{Cores, on_server_core};
use crate::child::{ServerChild, announce, end_with_measurement, park};
use crate::failure::{Context as _, Failure};
use crate::numbers::{at_least_one, round_seconds};
use crate::workload::setting::open_store;

/// The timeout of each step: far above every plausible figure.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The most calls that one worker queues for another.
pub(super) const IN_FLIGHT_MAX: usize = 65_536;

/// The number of concurrent calls or references to which goals apply.
pub(super) const GOAL_IN_FLIGHT: usize = 64;

/// The options of benchmarks of two workers.
#[derive(Debug, Args)]
pub(super) struct PairArgs {
    /// How long each figure is measured in a round.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = round_seconds)]
    seconds: f64,

    /// The number of rounds after a warm-up; figures are medians of the rounds.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub(super) rounds: usize,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub(super) json: bool,

    /// Does not pin the two sides to cores.
    #[arg(long)]
    pub(super) no_pin: bool,
}

impl PairArgs {
    /// How long each figure is measured in a round.
    pub(super) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// The place where the two workers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    OneProcess,
    TwoProcesses,
}

impl Place {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::OneProcess => "in process",
            Self::TwoProcesses => "two processes",
        }
    }
}

/// One of the two workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role {
    name: &'static str,
    rank: u32,
}

/// Serves calls, or owns values.
pub(super) const SERVER: Role = Role {
    name: "server",
    rank: 0,
};

const CLIENT: Role = Role {
    name: "client",
    rank: 1,
};

/// Two workers.
#[derive(Debug)]
pub(super) struct Pair<W> {
    pub(super) client: W,
    /// Dropped after the client, which would otherwise report a lost worker.
    pub(super) host: Host<W>,
}

/// Keeps the server running.
#[derive(Debug)]
pub(super) enum Host<W> {
    Worker(W),
    Process(ServerChild),
}

impl<W: Send + 'static> Pair<W> {
    /// Starts both workers in this process. Threads inherit their core from the thread that starts
    /// them.
    pub(super) fn in_process(
        cores: Option<Cores>,
        start: impl Fn(Role, Arc<dyn Store>) -> Result<W, Failure> + Clone + Send + 'static,
    ) -> Result<Self, Failure> {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let (its_start, its_store) = (start.clone(), Arc::clone(&store));
        // On another thread, as a start returns only when both workers have joined.
        let starting = on_server_core(cores, || {
            thread::Builder::new()
                .name("bench-start".to_owned())
                .spawn(move || its_start(SERVER, its_store))
                .context("cannot start a thread")
        })?;
        let client = start(CLIENT, store);
        let panicked = |_| Err(Failure::new("the thread that starts a worker panicked"));
        let server = starting.join().unwrap_or_else(panicked);
        Ok(Self {
            client: client?,
            host: Host::Worker(server?),
        })
    }

    /// Starts the server in a separate process with these arguments, which also serves the store.
    pub(super) fn two_processes(
        cores: Option<Cores>,
        arguments: &[String],
        start: impl Fn(Role, Arc<dyn Store>) -> Result<W, Failure>,
    ) -> Result<Self, Failure> {
        let child = ServerChild::start(arguments, cores)?;
        Ok(Self {
            client: start(CLIENT, open(child.address())?)?,
            host: Host::Process(child),
        })
    }
}

/// The server process: serves a store, and a worker that joins through it, until it is killed.
pub(super) fn serve<W>(
    start: impl FnOnce(Role, Arc<dyn Store>) -> Result<W, Failure>,
) -> Result<(), Failure> {
    end_with_measurement();
    let server = TcpStoreServer::bind((Ipv4Addr::LOCALHOST, 0), ServerOptions::default())?;
    announce(server.local_addr())?;
    let _worker = start(SERVER, open(server.local_addr())?)?;
    park()
}

pub(super) fn start_agent(
    role: Role,
    secret: Option<&Secret>,
    registry: Registry,
    store: Arc<dyn Store>,
) -> Result<Agent, Failure> {
    let mut options = AgentOptions::new(role.name, role.rank)
        .with_world_size(2)
        .with_host("127.0.0.1")
        .with_timeout(PATIENCE)
        .with_start_timeout(PATIENCE);
    if let Some(secret) = secret {
        options = options.with_secret(secret.clone());
    }
    Ok(Agent::start(options, registry, store)?)
}

/// The client's information about the server. It is looked up once, so that no call does it.
pub(super) fn server_of(client: &Agent) -> Result<WorkerInfo, Failure> {
    Ok(client.handle().worker(SERVER.name)?)
}

fn open(store: SocketAddr) -> Result<Arc<dyn Store>, Failure> {
    Ok(Arc::new(open_store(store, None)?))
}

/// The failure for a wrong answer, for which a figure would be worthless.
pub(super) fn wrong_answer(payload: &Bytes) -> Failure {
    let bytes = payload.len();
    Failure::new(format!(
        "the answer differs from the {bytes} bytes that were sent"
    ))
}

/// Checks an answer while the clock runs, by its length alone. The warm-up compares each byte.
pub(super) fn check_length(payload: &Bytes, answer_bytes: usize) -> Result<(), Failure> {
    if answer_bytes == payload.len() {
        return Ok(());
    }
    Err(wrong_answer(payload))
}
