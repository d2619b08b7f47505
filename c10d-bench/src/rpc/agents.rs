//! Two agents, of which the second serves an echo function.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_store::StoreExt;
use rpc_agent::{Agent, FutureMessage, Registry, Reply, RpcError, Secret, WorkerInfo};

use super::echo_client::{EchoClient, check_length};
use super::peer::PeerKind;
use crate::affinity::Cores;
use crate::failure::Failure;
use crate::latency::repeat;
use crate::pair::{Pair, server_of, start_agent};

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
    pair: Pair<Agent>,
    server: WorkerInfo,
}

impl AgentPair {
    pub(super) fn in_process(
        cores: Option<Cores>,
        secret: Option<&Secret>,
    ) -> Result<Self, Failure> {
        let secret = secret.cloned();
        Self::new(Pair::in_process(cores, move |role, store| {
            start_agent(role, secret.as_ref(), echo()?, store)
        })?)
    }

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

    /// Makes [`EXPIRING`] concurrent calls that are not answered; returns how long after its deadline each
    /// ended. The deadlines are spread evenly over `time`.
    pub(super) fn expire(&self, time: Duration) -> Result<Vec<Duration>, Failure> {
        let (ended, ends) = mpsc::channel();
        for index in 0..EXPIRING {
            // 7919 is prime: the deadlines are not in the order of the calls.
            let place = (index * 7919 % EXPIRING) as f64 / EXPIRING as f64;
            let timeout = EXPIRY_MIN + time.mul_f64(place);
            let deadline = Instant::now() + timeout;
            let call = self
                .pair
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
                    Err(error) => Err(Failure::new(error)),
                    Ok(_) => Err(Failure::new("a call that is not answered has an answer")),
                };
                // Fails after the first error, which drops the receiver.
                let _ = ended.send(late);
            });
        }
        drop(ended);
        let late: Vec<_> = ends.iter().collect::<Result<_, _>>()?;
        self.pair
            .client
            .handle()
            .call(&self.server, FORGET)
            .send_bytes(Bytes::new())
            .wait()?;
        Ok(late)
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

    fn many_at_a_time(
        &mut self,
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
