//! A handle for making calls through a running agent, from any thread.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{OtherProcess, ProcessBound};

use crate::error::RpcError;
use crate::future::{Promise, RpcFuture, contained};
use crate::metrics::MetricsSnapshot;
use crate::peer::RegistryId;
use crate::retry::RetryGroup;
use crate::runtime::{Activity, Runtime};
use crate::worker::{Destination, WorkerId, WorkerInfo};

/// Makes calls through an [`Agent`](crate::Agent). Cheap to clone.
///
/// A handle does not keep the agent alive: once the agent has ended, every call fails with
/// [`RpcError::Shutdown`].
///
/// In a forked child every call fails with [`RpcError::OtherProcess`] without sending anything, futures of the
/// parent's calls fail as well, and callbacks and jobs are dropped. To make calls, the child starts another agent.
///
/// ```no_run
/// # fn f(agent: &rpc_agent::Agent) -> Result<(), rpc_agent::RpcError> {
/// let handle = agent.handle().clone(); // for example for another thread
/// for worker in handle.workers() {
///     println!("{worker}: {:?}", handle.call(&worker, "status").send_bytes("").wait()?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AgentHandle {
    runtime: ProcessBound<Arc<Runtime>>,
}

/// Work that a coordinated shutdown of its agent waits for, until this value is dropped. See [`AgentHandle::begin_work`].
pub struct Work(Option<ProcessBound<Arc<Activity>>>);

impl Drop for Work {
    fn drop(&mut self) {
        // A forked child has separate counters.
        if let Some(Ok(activity)) = self.0.as_ref().map(ProcessBound::get) {
            activity.end();
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

impl AgentHandle {
    pub(super) fn new(runtime: Arc<Runtime>) -> Self {
        let runtime = ProcessBound::new(runtime);
        Self { runtime }
    }

    /// Returns the runtime for the agent's own threads, and for calls that need neither a lock nor a thread.
    pub(crate) fn runtime(&self) -> &Runtime {
        self.runtime.get_anywhere()
    }

    /// Returns the runtime for a call of the program. An error in a forked child.
    pub(crate) fn here(&self) -> Result<&Runtime, OtherProcess> {
        Ok(&**self.runtime.get()?)
    }

    /// Returns the name and the id of this worker.
    #[must_use]
    pub fn me(&self) -> &WorkerInfo {
        self.runtime().driver.me()
    }

    /// Returns all known workers of the group. In a forked child, it returns this worker only.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let Ok(runtime) = self.here() else {
            return vec![self.me().clone()];
        };
        let peers = runtime.driver.peers.all();
        peers.iter().map(|peer| peer.info.clone()).collect()
    }

    /// Finds a worker by its name or id. In a dynamic group, an unknown worker is looked up in the store, which
    /// blocks.
    ///
    /// # Errors
    /// [`RpcError::NoSuchWorker`] if there is no such worker, [`RpcError::OtherProcess`] in a forked child.
    pub fn worker<'a>(&self, which: impl Into<Destination<'a>>) -> Result<WorkerInfo, RpcError> {
        let peer = self.here()?.driver.find(which.into())?;
        Ok(peer.info.clone())
    }

    /// Returns the timeout of calls without an explicit timeout; `None` for no limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.runtime().driver.timeout()
    }

    /// Changes [`AgentHandle::timeout`] for later calls; `None` for no limit.
    pub fn set_timeout(&self, timeout: impl Into<Option<Duration>>) {
        self.runtime().driver.set_timeout(timeout.into());
    }

    /// Stops the retries of a group's calls to a worker, without waiting. Use it for a worker known to be dead.
    ///
    /// The calls fail with [`RpcError::RetriesExhausted`]. Calls that wait for their next attempt fail shortly after
    /// this returns, on the retry thread. The remaining calls fail if their current attempt fails. Calls outside the
    /// group, and later calls, are retried as usual.
    pub fn abandon_retries(&self, group: &RetryGroup, worker: WorkerId) {
        if let Ok(runtime) = self.here() {
            runtime.retries.abandon(group, worker);
        }
    }

    /// Registers a callback for connections that end without a Goodbye. It receives the worker and the reason.
    ///
    /// It runs on an agent thread, after the calls in flight on the connection have failed.
    pub fn on_peer_lost(&self, callback: impl Fn(&WorkerInfo, &str) + Send + Sync + 'static) {
        if let Ok(runtime) = self.here() {
            let mut callbacks = runtime.driver.listeners.lost.lock();
            callbacks.push(Arc::new(callback));
        }
    }

    /// Registers a callback for workers that close their connection with a Goodbye, to shut down or to leave the
    /// group.
    ///
    /// It runs on an agent thread and receives the incarnation of the process that left, because another process of
    /// the worker may have connected in the meantime.
    pub fn on_peer_left(
        &self,
        callback: impl Fn(&WorkerInfo, Option<u64>) + Send + Sync + 'static,
    ) {
        if let Ok(runtime) = self.here() {
            let mut callbacks = runtime.driver.listeners.left.lock();
            callbacks.push(Arc::new(callback));
        }
    }

    /// Registers a callback for the agent's end. If the agent has already ended, the callback is dropped.
    ///
    /// It runs on the thread that ended the agent, after all calls have failed and all agent threads have
    /// ended.
    pub fn on_end(&self, callback: impl FnOnce() + Send + 'static) {
        if let Ok(runtime) = self.here() {
            runtime.on_end(Box::new(callback));
        }
    }

    /// Runs a job on an agent thread, without waiting. For work that must not run on the calling thread, for example
    /// in a destructor.
    ///
    /// A coordinated shutdown waits for the job. Once the agent has ended, the job is dropped on the calling
    /// thread. A panic of the job is logged.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        if let Ok(runtime) = self.here() {
            let job = move || contained("a job", job);
            runtime.driver.spawn(Box::new(job));
        }
    }

    /// [`AgentHandle::spawn`] at the given time, or at once if the time has passed.
    ///
    /// A coordinated shutdown does not wait for a job that is not due. When the agent ends, the job is dropped.
    pub fn spawn_at(&self, at: Instant, job: impl FnOnce() + Send + 'static) {
        if let Ok(runtime) = self.here() {
            runtime.spawn_at(at, Box::new(move || contained("a job", job)));
        }
    }

    /// Starts work that no thread of the agent runs, for example a wait for a timer. A coordinated shutdown waits for the end of the
    /// work, which is the drop of the returned value.
    #[must_use = "the work ends when the value is dropped"]
    pub fn begin_work(&self) -> Work {
        Work(self.here().ok().map(|runtime| {
            let activity = Arc::clone(&runtime.driver.activity);
            activity.begin();
            ProcessBound::new(activity)
        }))
    }

    /// Returns a pending future and its write half. Its callbacks run on the agent's threads.
    ///
    /// While an agent thread waits for the future, another thread replaces it, like for the future of a call.
    pub fn promise<T: Clone + Send + 'static>(&self) -> (Promise<T>, RpcFuture<T>) {
        match self.here() {
            Ok(runtime) => runtime.driver.promise(),
            Err(_) => RpcFuture::new(),
        }
    }

    /// Returns the identity of the registry that the agent was started with.
    #[must_use]
    pub fn registry_id(&self) -> RegistryId {
        let functions = &self.runtime().driver.config.functions;
        functions.registry.clone()
    }

    /// Returns the size limit of a request or response of this worker, in bytes: see
    /// [`with_message_bytes_max`](crate::AgentOptions::with_message_bytes_max).
    #[must_use]
    pub fn message_bytes_max(&self) -> u64 {
        self.runtime().driver.config.message_bytes_max
    }

    /// Returns the time limit for connecting to a worker: see
    /// [`with_connect_timeout`](crate::AgentOptions::with_connect_timeout).
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.runtime().driver.config.connect_timeout
    }

    /// Returns the agent's random incarnation number, never 0. It distinguishes this process from others with the
    /// same worker name and id.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.runtime().driver.config.incarnation
    }

    /// Returns the incarnation of a worker's process at its last connection; `None` before the first one.
    #[must_use]
    pub fn incarnation_of(&self, worker: WorkerId) -> Option<u64> {
        if worker == self.me().id {
            return Some(self.incarnation());
        }
        let peers = &self.here().ok()?.driver.peers;
        peers.get(worker.get())?.incarnation()
    }

    /// Returns the incarnation of a worker's process that has closed its connection with a Goodbye. `None` without a
    /// Goodbye, or when a later process has connected.
    #[must_use]
    pub fn left_incarnation_of(&self, worker: WorkerId) -> Option<u64> {
        let peers = &self.here().ok()?.driver.peers;
        peers.get(worker.get())?.left_incarnation()
    }

    /// Returns the counters and gauges of the agent; all 0 in a forked child.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.here().map(Runtime::metrics).unwrap_or_default()
    }
}

impl fmt::Debug for AgentHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AgentHandle").field(self.me()).finish()
    }
}
