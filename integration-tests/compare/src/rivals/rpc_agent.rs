//! `rpc-agent`, between two workers of a group of two.
//!
//! The server announces the address of its store, in which the client finds the worker by name, as in a job. One
//! thread sends all calls in flight and waits for the oldest.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreOptions, TcpStoreServer};
use rpc_agent::{Agent, AgentOptions, FutureMessage, Registry};

use super::contract::{Announce, Client, SILENCE_MAX, Throughput, check_length};
use crate::error::CompareError;
use crate::rival::Rival;

const SERVER: &str = "server";
const FUNCTION: &str = "echo";

pub(super) fn serve(announce: Announce<'_>) -> Result<(), CompareError> {
    let store = TcpStoreServer::bind((Ipv4Addr::LOCALHOST, 0), ServerOptions::default())
        .map_err(CompareError::setup(Rival::RpcAgent, "cannot serve a store"))?;
    let mut registry = Registry::new();
    registry
        .register_bytes(FUNCTION, |_, payload| Ok(payload))
        .map_err(CompareError::setup(Rival::RpcAgent, "cannot register"))?;
    announce(store.local_addr()).map_err(CompareError::setup(
        Rival::RpcAgent,
        "cannot announce the address",
    ))?;
    let _agent = start(SERVER, 0, store.local_addr(), registry)?;
    // The agent's threads serve until the process exits.
    loop {
        thread::park();
    }
}

fn start(
    name: &str,
    rank: u32,
    store: SocketAddr,
    registry: Registry,
) -> Result<Agent, CompareError> {
    let options = TcpStoreOptions::default().with_timeout(SILENCE_MAX);
    let store = TcpStore::open(&store.ip().to_string(), store.port(), options).map_err(
        CompareError::setup(Rival::RpcAgent, "cannot open the store"),
    )?;
    let store: Arc<dyn Store> = Arc::new(store);
    let options = AgentOptions::new(name, rank)
        .with_world_size(2)
        .with_host("127.0.0.1")
        .with_timeout(SILENCE_MAX)
        .with_start_timeout(SILENCE_MAX);
    Agent::start(options, registry, store).map_err(CompareError::setup(
        Rival::RpcAgent,
        "cannot start the agent",
    ))
}

#[derive(Debug)]
pub(super) struct AgentClient {
    agent: Agent,
}

impl AgentClient {
    /// Finds the server through its store. The first call connects.
    pub(super) fn connect(store: SocketAddr) -> Result<Self, CompareError> {
        let agent = start("client", 1, store, Registry::new())?;
        Ok(Self { agent })
    }

    fn send(&self, payload: &Bytes) -> FutureMessage {
        self.agent
            .handle()
            .call(SERVER, FUNCTION)
            .send_bytes(payload.clone())
    }

    fn answer(future: &FutureMessage) -> Result<Bytes, CompareError> {
        future.wait().map_err(CompareError::call(Rival::RpcAgent))
    }
}

impl Client for AgentClient {
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, CompareError> {
        Self::answer(&self.send(payload))
    }

    fn one_in_flight(
        &mut self,
        payload: &Bytes,
        time: Duration,
    ) -> Result<Vec<Duration>, CompareError> {
        let mut latencies = Vec::new();
        let mut sent = Instant::now();
        let end = sent + time;
        while latencies.is_empty() || sent < end {
            let answer = self.echo(payload)?;
            let answered = Instant::now();
            check_length(Rival::RpcAgent, payload, &answer)?;
            latencies.push(answered - sent);
            sent = answered;
        }
        Ok(latencies)
    }

    fn window(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<Throughput, CompareError> {
        let began = Instant::now();
        let end = began + time;
        let mut calls = 0;
        let mut waiting: VecDeque<_> = (0..in_flight).map(|_| self.send(payload)).collect();
        while let Some(oldest) = waiting.pop_front() {
            let answer = Self::answer(&oldest)?;
            check_length(Rival::RpcAgent, payload, &answer)?;
            calls += 1;
            if Instant::now() < end {
                waiting.push_back(self.send(payload));
            }
        }
        Ok(Throughput {
            calls,
            elapsed: began.elapsed(),
        })
    }
}
