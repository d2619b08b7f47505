//! Two agents, of which the second serves an echo function.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::{
    HashStore, ServerOptions, Store, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use rpc_agent::{
    Agent, AgentOptions, FutureMessage, Registry, Reply, RpcError, Secret, WorkerInfo,
};

use super::super::affinity::{Cores, on_server_core};
use super::super::child::ServerChild;
use super::super::error::BenchError;
use super::super::pair::PATIENCE;
use super::echo_client::{EchoClient, check_length};
use super::error::RpcBenchError;
use super::peer::PeerKind;

pub(in super::super) const SERVER: &str = "server";
pub(in super::super) const CLIENT: &str = "client";
const FUNCTION: &str = "echo";

/// A function that does not answer before [`FORGET`] is called.
const KEEP: &str = "keep";
const FORGET: &str = "forget";

/// The key under which the second process finds the secret of a measurement.
const SECRET_KEY: &str = "bench secret";

/// The number of calls that end at their deadlines.
pub(super) const EXPIRING: usize = 10_000;

/// The first deadline, by which all calls are in flight.
const EXPIRY_MIN: Duration = Duration::from_millis(500);

/// A calling agent, and the agent that it calls.
#[derive(Debug)]
pub(super) struct AgentPair {
    client: Agent,
    /// Looked up once, so that no call does it.
    server: WorkerInfo,
    /// Dropped after the client, which would otherwise report a lost worker.
    _host: Host,
}

/// Keeps the server running.
#[derive(Debug)]
#[expect(dead_code, reason = "dropping it ends the server")]
enum Host {
    Agent(Agent),
    Process(ServerChild),
}

impl AgentPair {
    /// Both in this process. Threads inherit their core from the one that starts them.
    pub(super) fn in_process(
        cores: Option<Cores>,
        secret: Option<&Secret>,
    ) -> Result<Self, RpcBenchError> {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let its_store = Arc::clone(&store);
        let its_secret = secret.cloned();
        // On another thread, as a start returns only when both workers have joined.
        let starting = on_server_core(cores, || {
            thread::Builder::new()
                .name("bench-rpc-start".to_owned())
                .spawn(move || start_with(its_secret, SERVER, 0, echo()?, its_store))
                .map_err(BenchError::system("cannot start a thread"))
        })?;
        let client = start_with(secret.cloned(), CLIENT, 1, Registry::new(), store);
        let server = starting.join().map_err(|_| RpcBenchError::Panic)?;
        Self::new(client?, Host::Agent(server?))
    }

    /// The server in a process of its own, which also serves the store.
    pub(super) fn two_processes(
        cores: Option<Cores>,
        secret: Option<&Secret>,
    ) -> Result<Self, RpcBenchError> {
        let kind = match secret {
            None => PeerKind::Agent,
            Some(_) => PeerKind::AgentWithSecret,
        };
        let child = ServerChild::start(&kind.command_line(), cores)?;
        let store = open(child.address())?;
        if let Some(secret) = secret {
            store.set(SECRET_KEY, secret.to_text().as_bytes())?;
        }
        let client = start_with(secret.cloned(), CLIENT, 1, Registry::new(), store)?;
        Self::new(client, Host::Process(child))
    }

    fn new(client: Agent, host: Host) -> Result<Self, RpcBenchError> {
        let server = client.handle().worker(SERVER)?;
        Ok(Self {
            client,
            server,
            _host: host,
        })
    }

    /// Makes [`EXPIRING`] concurrent calls that are not answered; returns how long after its deadline each
    /// ended. The deadlines are spread evenly over `time`.
    pub(super) fn expire(&self, time: Duration) -> Result<Vec<Duration>, RpcBenchError> {
        let (ended, ends) = mpsc::channel();
        for index in 0..EXPIRING {
            // 7919 is prime: the deadlines are not in the order of the calls.
            let place = (index * 7919 % EXPIRING) as f64 / EXPIRING as f64;
            let timeout = EXPIRY_MIN + time.mul_f64(place);
            let deadline = Instant::now() + timeout;
            let call = self
                .client
                .handle()
                .call(&self.server, KEEP)
                .with_timeout(timeout)
                .send_bytes(Bytes::new());
            let ended = ended.clone();
            call.on_complete(move |result| {
                let late = deadline.elapsed();
                let late = match result {
                    Err(RpcError::Timeout { .. }) => Ok(late),
                    Err(error) => Err(RpcBenchError::Call(error.clone())),
                    Ok(answer) => Err(RpcBenchError::WrongAnswer {
                        bytes: answer.len(),
                    }),
                };
                // Fails after the first error, which drops the receiver.
                let _ = ended.send(late);
            });
        }
        drop(ended);
        let late: Vec<_> = ends.iter().collect::<Result<_, _>>()?;
        self.client
            .handle()
            .call(&self.server, FORGET)
            .send_bytes(Bytes::new())
            .wait()?;
        Ok(late)
    }

    fn send(&self, payload: &Bytes) -> FutureMessage {
        self.client
            .handle()
            .call(&self.server, FUNCTION)
            .send_bytes(payload.clone())
    }
}

impl EchoClient for AgentPair {
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, RpcBenchError> {
        Ok(self.send(payload).wait()?)
    }

    fn one_at_a_time(
        &mut self,
        payload: &Bytes,
        time: Duration,
    ) -> Result<Vec<Duration>, RpcBenchError> {
        let mut times = Vec::new();
        let mut sent = Instant::now();
        let end = sent + time;
        while times.is_empty() || sent < end {
            let answer = self.echo(payload)?;
            let answered = Instant::now();
            check_length(payload, answer.len())?;
            times.push(answered - sent);
            sent = answered;
        }
        Ok(times)
    }

    fn many_at_a_time(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<u64, RpcBenchError> {
        let end = Instant::now() + time;
        let mut waiting: VecDeque<_> = (0..in_flight).map(|_| self.send(payload)).collect();
        let mut answered = 0;
        while let Some(oldest) = waiting.pop_front() {
            check_length(payload, oldest.wait()?.len())?;
            answered += 1;
            if Instant::now() < end {
                waiting.push_back(self.send(payload));
            }
        }
        Ok(answered)
    }
}

/// The server process. Its threads serve until it is killed.
pub(super) fn serve(
    has_secret: bool,
    announce: impl FnOnce(SocketAddr) -> io::Result<()>,
) -> Result<(), RpcBenchError> {
    let server = TcpStoreServer::bind((Ipv4Addr::LOCALHOST, 0), ServerOptions::default())?;
    announce(server.local_addr()).map_err(BenchError::system("cannot write to standard output"))?;
    let store = open(server.local_addr())?;
    let secret = if has_secret {
        let text = store.get(SECRET_KEY)?;
        Some(Secret::from_text(&String::from_utf8_lossy(&text))?)
    } else {
        None
    };
    let _agent = start_with(secret, SERVER, 0, echo()?, store)?;
    loop {
        thread::park();
    }
}

fn echo() -> Result<Registry, RpcBenchError> {
    let mut registry = Registry::new();
    registry.register_bytes(FUNCTION, |_, payload| Ok(payload))?;
    let kept: Arc<Mutex<Vec<Reply>>> = Arc::default();
    let keeping = Arc::clone(&kept);
    registry.register_deferred(KEEP, move |_, _, reply| {
        let mut kept = keeping.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(reply);
    })?;
    registry.register_bytes(FORGET, move |_, _| {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        drop(std::mem::take(&mut *kept));
        Ok(Bytes::new())
    })?;
    Ok(registry)
}

pub(in super::super) fn open(store: SocketAddr) -> Result<Arc<dyn Store>, RpcBenchError> {
    let options = TcpStoreOptions::default().with_timeout(PATIENCE);
    let store = TcpStore::open(&store.ip().to_string(), store.port(), options)?;
    Ok(Arc::new(store))
}

pub(in super::super) fn start(
    name: &str,
    rank: u32,
    registry: Registry,
    store: Arc<dyn Store>,
) -> Result<Agent, RpcBenchError> {
    start_with(None, name, rank, registry, store)
}

fn start_with(
    secret: Option<Secret>,
    name: &str,
    rank: u32,
    registry: Registry,
    store: Arc<dyn Store>,
) -> Result<Agent, RpcBenchError> {
    let mut options = AgentOptions::new(name, rank)
        .with_world_size(2)
        .with_host("127.0.0.1")
        .with_timeout(PATIENCE)
        .with_start_timeout(PATIENCE);
    if let Some(secret) = secret {
        options = options.with_secret(secret);
    }
    Agent::start(options, registry, store).map_err(|error| RpcBenchError::Start(Box::new(error)))
}
