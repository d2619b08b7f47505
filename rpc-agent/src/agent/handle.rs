//! Calls and questions that any thread may ask of a running agent.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::options::CallOptions;
use crate::error::RpcError;
use crate::future::{FutureMessage, Promise, RpcFuture, contained};
use crate::metrics::MetricsSnapshot;
use crate::registry_id::RegistryId;
use crate::retry::{RetryGroup, RetryOptions};
use crate::runtime::{CallTimeout, Runtime};
use crate::worker::{Destination, WorkerId, WorkerInfo};

/// Makes calls through an [`Agent`](crate::Agent). Cheap to clone, and does not keep the agent alive: after its end
/// every call fails with [`RpcError::Shutdown`].
#[derive(Clone)]
pub struct AgentHandle {
    runtime: Arc<Runtime>,
    registry_id: RegistryId,
    connect_timeout: Duration,
}

impl AgentHandle {
    pub(super) fn new(
        runtime: Arc<Runtime>,
        registry_id: RegistryId,
        connect_timeout: Duration,
    ) -> Self {
        Self {
            runtime,
            registry_id,
            connect_timeout,
        }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// This worker.
    #[must_use]
    pub fn me(&self) -> &WorkerInfo {
        self.runtime.driver.me()
    }

    /// All workers of the group that this one knows of.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let peers = self.runtime.driver.peers.all();
        peers.iter().map(|peer| peer.info.clone()).collect()
    }

    /// A worker by name or id. In a group whose members come and go the store is asked for one that is
    /// not known yet.
    ///
    /// # Errors
    /// [`RpcError::NoSuchWorker`].
    pub fn worker<'a>(&self, which: impl Into<Destination<'a>>) -> Result<WorkerInfo, RpcError> {
        let peer = self.runtime.caller.find(which.into())?;
        Ok(peer.info.clone())
    }

    /// How long a call may take that has no timeout of its own; `None` for no limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.runtime.caller.timeout()
    }

    /// How long a call with these options may take; `None` for no limit.
    #[must_use]
    pub fn timeout_of(&self, options: &CallOptions) -> Option<Duration> {
        match options.timeout {
            CallTimeout::OfAgent => self.timeout(),
            CallTimeout::Own(timeout) => timeout,
        }
    }

    /// Changes [`AgentHandle::timeout`] for later calls. `None`: calls have no deadline.
    pub fn set_timeout(&self, timeout: impl Into<Option<Duration>>) {
        self.runtime.caller.set_timeout(timeout.into());
    }

    /// Calls a function with bytes and waits for the bytes that it returns, for at most the agent's
    /// timeout.
    ///
    /// May be called from a function that this agent runs.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn call_bytes<'a>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        payload: impl Into<Bytes>,
    ) -> Result<Bytes, RpcError> {
        self.call_bytes_async(to, function, payload, CallOptions::default())
            .wait()
    }

    /// [`AgentHandle::call_bytes`] with options.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn call_bytes_with<'a>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        payload: impl Into<Bytes>,
        options: CallOptions,
    ) -> Result<Bytes, RpcError> {
        self.call_bytes_async(to, function, payload, options).wait()
    }

    /// Calls a function with bytes and does not wait. What goes wrong is the future's result.
    pub fn call_bytes_async<'a>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        payload: impl Into<Bytes>,
        options: CallOptions,
    ) -> FutureMessage {
        self.runtime
            .caller
            .call(to.into(), function, payload.into(), options.timeout)
    }

    /// Calls a function until it succeeds, at least once: if an answer is lost the function runs again, so
    /// it must do no harm twice. Does not wait.
    pub fn call_bytes_with_retries<'a>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        payload: impl Into<Bytes>,
        options: &RetryOptions,
    ) -> FutureMessage {
        self.runtime
            .retries
            .call(to.into(), function, payload.into(), options)
    }

    /// Ends the calls of a group to a worker, as if their retries were exhausted: [`RpcError::RetriesExhausted`]. For
    /// callers that know that the worker is dead. Does not wait.
    ///
    /// Calls that wait for their next attempt end now, others with the attempt that is under way. Calls outside of the
    /// group, and those that begin later, are retried as usual.
    pub fn abandon_retries(&self, group: &RetryGroup, worker: WorkerId) {
        self.runtime.retries.abandon(group, worker);
    }

    /// Has a callback run, on a thread of the agent, each time that the connection to a worker ends
    /// without its farewell, with the reason. Calls that were under way have failed by then.
    pub fn on_peer_lost(&self, callback: impl Fn(&WorkerInfo, &str) + Send + Sync + 'static) {
        self.runtime.driver.listeners.on_lost(Arc::new(callback));
    }

    /// Has a callback run, on a thread of the agent, each time that a worker ends its connection with a
    /// farewell: its agent has ended in order, or has left the group. With the incarnation of the process
    /// that did so: another one may be connected by the time that the callback runs.
    pub fn on_peer_left(
        &self,
        callback: impl Fn(&WorkerInfo, Option<u64>) + Send + Sync + 'static,
    ) {
        self.runtime.driver.listeners.on_left(Arc::new(callback));
    }

    /// Has a callback run when the agent has ended, on the thread that has ended it: all calls have failed
    /// by then, and no thread of the agent runs any more. If it has ended already, the callback is dropped.
    pub fn on_end(&self, callback: impl FnOnce() + Send + 'static) {
        self.runtime.on_end(Box::new(callback));
    }

    /// Has a job run soon, once, on a thread of the agent, as a callback of a future does; after the agent's
    /// end it is dropped, on this thread. Does not block. The joint end waits for it. A panic is logged.
    ///
    /// For what must not happen where it is found out, as in a destructor.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.runtime
            .spawn(Box::new(move || contained("a job", job)));
    }

    /// [`AgentHandle::spawn`] at a later time, or soon if that has passed. The joint end does not wait for
    /// what is not due yet; the agent's end drops it.
    pub fn spawn_at(&self, at: Instant, job: impl FnOnce() + Send + 'static) {
        self.runtime
            .spawn_at(at, Box::new(move || contained("a job", job)));
    }

    /// A pending future, and what completes it. Its callbacks run on the agent's threads, and one of those
    /// that waits for it has another take its place, as with the future of a call.
    pub fn promise<T: Clone + Send + 'static>(&self) -> (Promise<T>, RpcFuture<T>) {
        self.runtime.caller.promise()
    }

    /// Which registry the agent was started with.
    #[must_use]
    pub fn registry_id(&self) -> RegistryId {
        self.registry_id.clone()
    }

    /// For how long a worker is dialed: see [`AgentOptions::with_connect_timeout`].
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// The number that this worker's process has drawn for the agent, so that its messages are told from
    /// those of another process with the same name and id. Never 0.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.runtime.driver.config.incarnation
    }

    /// The incarnation of a worker's process, as it was when a connection to it was made last; `None`
    /// before the first one.
    #[must_use]
    pub fn incarnation_of(&self, worker: WorkerId) -> Option<u64> {
        if worker == self.me().id {
            return Some(self.incarnation());
        }
        self.runtime.driver.peers.get(worker.get())?.incarnation()
    }

    /// What has happened so far, in numbers.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.runtime.metrics()
    }
}

impl fmt::Debug for AgentHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AgentHandle").field(self.me()).finish()
    }
}
