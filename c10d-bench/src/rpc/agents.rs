//! Two agents; the second agent serves an echo function.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::StoreExt;
use rpc_agent::{Agent, FutureMessage, Registry, Secret, WorkerInfo};

use super::peer::{EchoClient, PeerKind};
use crate::affinity::Cores;
use crate::failure::Failure;
use crate::pair::check_length;
use crate::pair::{Pair, server_of, start_agent};
use crate::report::repeat;

const FUNCTION: &str = "echo";

/// The key of the secret of a measurement, for the second process.
const SECRET_KEY: &str = "bench secret";

/// A calling agent, and the agent that it calls.
#[derive(Debug)]
pub(super) struct AgentPair {
    pair: Pair<Agent>,
    server: WorkerInfo,
}

impl AgentPair {
    pub(super) fn two_processes(
        cores: Option<Cores>,
        secret: Option<&Secret>,
    ) -> Result<Self, Failure> {
        let kind = match secret {
            None => PeerKind::Agent,
            Some(_) => PeerKind::AgentWithSecret,
        };
        let pair = Pair::two_processes(cores, &kind.command_line(), |role, store| {
            if let Some(secret) = secret {
                store.set(SECRET_KEY, secret.to_text().as_bytes())?;
            }
            start_agent(role, secret, Registry::new(), store)
        });
        Self::new(pair?)
    }

    fn new(pair: Pair<Agent>) -> Result<Self, Failure> {
        let server = server_of(&pair.client)?;
        Ok(Self { pair, server })
    }

    /// Keeps `in_flight` calls in flight for `time`, then waits for the remaining answers; returns the number of answers.
    pub(super) fn many_at_a_time(
        &self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<u64, Failure> {
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

    fn send(&self, payload: &Bytes) -> FutureMessage {
        self.pair
            .client
            .handle()
            .call(&self.server, FUNCTION)
            .send_bytes(payload.clone())
    }
}

impl EchoClient for AgentPair {
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, Failure> {
        Ok(self.send(payload).wait()?)
    }

    fn one_at_a_time(&mut self, payload: &Bytes, time: Duration) -> Result<Vec<Duration>, Failure> {
        repeat(time, || check_length(payload, self.echo(payload)?.len()))
    }
}

/// The server process.
pub(super) fn serve(has_secret: bool) -> Result<(), Failure> {
    crate::pair::serve(|role, store| {
        let secret = if has_secret {
            let text = store.get(SECRET_KEY)?;
            Some(Secret::from_text(&String::from_utf8_lossy(&text))?)
        } else {
            None
        };
        start_agent(role, secret.as_ref(), echo()?, store)
    })
}

fn echo() -> Result<Registry, Failure> {
    let mut registry = Registry::new();
    registry.register_bytes(FUNCTION, |_, payload| Ok(payload))?;
    Ok(registry)
}
