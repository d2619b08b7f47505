//! The two workers of a benchmark, in two processes, and the options of such benchmarks.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use c10d_store::{ServerOptions, Store, TcpStoreServer};
use clap::Args;
use rpc_agent::{Agent, AgentOptions, Registry, WorkerInfo};

use crate::affinity::Cores;
use crate::child::{ServerChild, announce, end_with_measurement, park};
use crate::failure::Failure;
use crate::workload::setting::{at_least_one, open_store, round_seconds};

/// The timeout of each step: far above every plausible figure.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The number of concurrent calls or references when throughput is measured.
pub(super) const IN_FLIGHT: usize = 64;

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

/// One of the two workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role {
    name: &'static str,
    rank: u32,
}

/// Serves calls, or owns values.
const SERVER: Role = Role {
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
    /// The process of the server. Dropped after the client, which would otherwise report a lost worker.
    pub(super) host: ServerChild,
}

impl<W> Pair<W> {
    /// Starts the server in a process of this program with this argument, which also serves the store.
    pub(super) fn start(
        cores: Option<Cores>,
        argument: &str,
        start: impl FnOnce(Role, Arc<dyn Store>) -> Result<W, Failure>,
    ) -> Result<Self, Failure> {
        let host = ServerChild::start(&[argument.to_owned()], cores)?;
        Ok(Self {
            client: start(CLIENT, open(host.address())?)?,
            host,
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
    registry: Registry,
    store: Arc<dyn Store>,
) -> Result<Agent, Failure> {
    let options = AgentOptions::new(role.name, role.rank)
        .with_world_size(2)
        .with_host("127.0.0.1")
        .with_timeout(PATIENCE)
        .with_start_timeout(PATIENCE);
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
