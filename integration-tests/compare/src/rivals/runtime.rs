//! Calls from tasks of a tokio runtime, shared by tarpc and tonic.
//!
//! The loops run as tasks inside the runtime, where calls are cheapest: with the multi-thread runtime, no call wakes
//! the thread in `block_on`.

use std::future::Future;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::contract::{Client, SILENCE_MAX, Throughput, check_length};
use crate::error::CompareError;
use crate::rival::{Flavor, Rival};

/// A runtime with this scheduler.
pub(super) fn start(flavor: Flavor) -> io::Result<Runtime> {
    match flavor {
        Flavor::MultiThread => Builder::new_multi_thread(),
        Flavor::CurrentThread => Builder::new_current_thread(),
    }
    .enable_all()
    .build()
}

/// A handle to the rival's connection. Each task clones it, as the rival's users do.
pub(super) trait Caller: Clone + Send + 'static {
    fn echo(&mut self, payload: Bytes) -> impl Future<Output = Result<Bytes, CompareError>> + Send;
}

/// A client whose calls are futures.
#[derive(Debug)]
pub(super) struct TokioClient<C> {
    rival: Rival,
    runtime: Runtime,
    caller: C,
}

impl<C: Caller> TokioClient<C> {
    /// Makes the connection inside the runtime.
    pub(super) fn connect<F>(rival: Rival, flavor: Flavor, connect: F) -> Result<Self, CompareError>
    where
        F: Future<Output = Result<C, CompareError>> + Send + 'static,
    {
        let runtime = start(flavor).map_err(CompareError::setup(rival, "cannot start tokio"))?;
        let caller = run(rival, &runtime, Duration::ZERO, connect)?;
        Ok(Self {
            rival,
            runtime,
            caller,
        })
    }
}

/// Runs the future as a task of the runtime, and fails after [`SILENCE_MAX`] beyond `expected`.
fn run<T, F>(
    rival: Rival,
    runtime: &Runtime,
    expected: Duration,
    future: F,
) -> Result<T, CompareError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CompareError>> + Send + 'static,
{
    let limit = expected + SILENCE_MAX;
    runtime.block_on(async {
        match tokio::time::timeout(limit, tokio::spawn(future)).await {
            Ok(Ok(result)) => result,
            Ok(Err(panicked)) => Err(CompareError::call(rival)(panicked)),
            Err(_) => Err(CompareError::Stalled {
                rival,
                expected_ms: expected.as_millis(),
                waited_ms: limit.as_millis(),
            }),
        }
    })
}

impl<C: Caller> Client for TokioClient<C> {
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, CompareError> {
        let (mut caller, payload) = (self.caller.clone(), payload.clone());
        run(self.rival, &self.runtime, Duration::ZERO, async move {
            caller.echo(payload).await
        })
    }

    fn one_in_flight(
        &mut self,
        payload: &Bytes,
        time: Duration,
    ) -> Result<Vec<Duration>, CompareError> {
        let rival = self.rival;
        let (mut caller, payload) = (self.caller.clone(), payload.clone());
        run(rival, &self.runtime, time, async move {
            let mut latencies = Vec::new();
            let mut sent = Instant::now();
            let end = sent + time;
            while latencies.is_empty() || sent < end {
                let answer = caller.echo(payload.clone()).await?;
                let answered = Instant::now();
                check_length(rival, &payload, &answer)?;
                latencies.push(answered - sent);
                sent = answered;
            }
            Ok(latencies)
        })
    }

    /// One task for each call in flight.
    fn window(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<Throughput, CompareError> {
        let rival = self.rival;
        let (caller, payload) = (self.caller.clone(), payload.clone());
        run(rival, &self.runtime, time, async move {
            let began = Instant::now();
            let end = began + time;
            let mut tasks = JoinSet::new();
            for _ in 0..in_flight {
                let (mut caller, payload) = (caller.clone(), payload.clone());
                tasks.spawn(async move {
                    let mut calls = 0;
                    while calls == 0 || Instant::now() < end {
                        let answer = caller.echo(payload.clone()).await?;
                        check_length(rival, &payload, &answer)?;
                        calls += 1;
                    }
                    Ok::<u64, CompareError>(calls)
                });
            }
            let mut calls = 0;
            while let Some(ended) = tasks.join_next().await {
                calls += ended.map_err(CompareError::call(rival))??;
            }
            Ok(Throughput {
                calls,
                elapsed: began.elapsed(),
            })
        })
    }
}
