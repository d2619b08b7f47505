//! [`RRefs`]: the references of a worker, from before its agent starts.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rpc_agent::{AgentHandle, CallOptions, Destination, RegistryId, WorkerInfo};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::type_name_of;
use crate::context::{Snapshot, TableSizes};
use crate::error::RRefError;
use crate::future::RRefFuture;
use crate::handle::RRef;
use crate::options::RRefOptions;
use crate::runtime::{RunCreation, RunOn, Runtime};
use crate::value::Value;

/// What the clones of an [`RRefs`] share.
pub(crate) struct Hub {
    pub(crate) creator: Arc<dyn RunCreation>,
    pub(crate) options: RRefOptions,
    pub(crate) registry: RegistryId,
    pub(crate) runtime: OnceLock<Arc<Runtime>>,
}

impl Hub {
    /// The runtime, which the first request or [`RRefs::attach`] starts.
    pub(crate) fn runtime(&self, agent: &AgentHandle) -> &Arc<Runtime> {
        if let Some(runtime) = self.runtime.get() {
            return runtime;
        }
        // Started before it is published, so that the agent is not called under the cell's lock. If two
        // threads start one at once, one is dropped, and its callbacks at the agent do nothing.
        let started = Runtime::start(agent, Arc::clone(&self.creator), &self.options);
        self.runtime.get_or_init(|| started)
    }
}

/// The references of a worker: creates them, calls functions with them, and shuts them down.
///
/// Cheap to clone. Register it before the agent starts, then attach it to the agent. It serves references while
/// one clone of it exists.
///
/// ```
/// use rpc_agent::Registry;
/// use rref::{Functions, RRefs};
///
/// let mut registry = Registry::new();
/// let rrefs = RRefs::register(&mut registry, Functions::new())?;
/// // let agent = Agent::start(options, registry, store)?;
/// // rrefs.attach(agent.handle())?;
/// # drop(rrefs);
/// # Ok::<(), rref::RegisterError>(())
/// ```
#[derive(Clone)]
pub struct RRefs {
    hub: Arc<Hub>,
}

impl RRefs {
    pub(crate) const fn of(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    pub(crate) fn runtime(&self) -> Result<&Arc<Runtime>, RRefError> {
        self.hub.runtime.get().ok_or(RRefError::NotAttached)
    }

    /// Attaches the references to the agent that was started with their registry. The first request of another
    /// worker does the same; before either, each operation fails with [`RRefError::NotAttached`]. Never blocks.
    ///
    /// # Errors
    /// [`RRefError::Refused`] if the agent was started with another registry.
    pub fn attach(&self, agent: &AgentHandle) -> Result<(), RRefError> {
        // Another registry lacks the functions that serve references.
        if agent.registry_id() != self.hub.registry {
            let me = agent.me();
            let what = format!(
                "cannot attach references to {me}: its agent was started with another registry"
            );
            return Err(RRefError::Refused(what.into()));
        }
        self.hub.runtime(agent);
        Ok(())
    }

    /// This worker.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`].
    pub fn me(&self) -> Result<WorkerInfo, RRefError> {
        Ok(self.runtime()?.agent.me().clone())
    }

    /// A reference to a value of this worker. Sends nothing until the reference is sent somewhere.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`]; [`RRefError::Shutdown`].
    pub fn rref<T: Serialize + Send + Sync + 'static>(
        &self,
        value: T,
    ) -> Result<RRef<T>, RRefError> {
        let runtime = self.runtime()?;
        let cell = runtime.keep(Value::of(value), type_name_of::<T>())?;
        Ok(RRef::of(cell))
    }

    /// [`RRefs::rref`] for a value that never leaves this worker: other workers can only run methods on it.
    ///
    /// # Errors
    /// As [`RRefs::rref`].
    pub fn rref_opaque<T: Send + Sync + 'static>(&self, value: T) -> Result<RRef<T>, RRefError> {
        let runtime = self.runtime()?;
        let cell = runtime.keep(Value::opaque(value), type_name_of::<T>())?;
        Ok(RRef::of(cell))
    }

    /// A reference to a value of this worker that the program sets later: PyTorch's `OwnerRRef` without a value.
    ///
    /// [`RRef::set_value`], [`RRef::set_value_opaque`] or [`RRef::set_error`] on any handle of this worker sets
    /// it, one that came back from another worker included. The reference can be sent before; requests for the
    /// value wait for it, each until its own timeout. At the shutdown an unset value becomes an error.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use c10d_store::HashStore;
    /// # use rpc_agent::{Agent, AgentOptions, Registry};
    /// # use rref::{Functions, RRef, RRefs};
    /// # const PATIENCE: Duration = Duration::from_secs(30);
    /// # let mut registry = Registry::new();
    /// # let rrefs = RRefs::register(&mut registry, Functions::new())?;
    /// # let options = AgentOptions::new("alone", 0).with_world_size(1).with_host("127.0.0.1");
    /// # let agent = Agent::start(options, registry, Arc::new(HashStore::new()))?;
    /// # rrefs.attach(agent.handle())?;
    /// let loss: RRef<f64> = rrefs.rref_without_value()?;
    /// let waiting = loss.value_future()?; // other workers may fetch it, too
    /// assert!(!loss.has_value()? && !waiting.is_complete());
    /// loss.set_value(0.25)?;
    /// assert_eq!(*waiting.wait()?, 0.25);
    /// # drop((loss, waiting));
    /// # rrefs.shutdown(&agent, Some(PATIENCE))?;
    /// # agent.shutdown(PATIENCE)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`RRefs::rref`].
    pub fn rref_without_value<T: Send + Sync + 'static>(&self) -> Result<RRef<T>, RRefError> {
        Ok(RRef::of(self.runtime()?.promise_value::<T>()?))
    }

    /// Runs a registered function on a worker, this one included, keeps its result there, and returns a
    /// reference to the result. Never blocks.
    ///
    /// The function runs once, even if messages are lost. If it fails, each use of the reference fails with
    /// [`RRefError::Creation`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn f(rrefs: &rref::RRefs) -> Result<(), rref::RRefError> {
    /// let sum = rrefs.remote::<(i64, i64), i64>("worker1", "add", (1, 2))?;
    /// assert_eq!(sum.to_here(Some(Duration::from_secs(5)))?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RRefError::Rpc`] if there is no such worker; [`RRefError::Codec`] or [`RRefError::Refused`] if the
    /// arguments cannot be sent; [`RRefError::NotAttached`]; [`RRefError::Shutdown`].
    pub fn remote<'a, A: Serialize, R: Send + Sync + 'static>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
    ) -> Result<RRef<R>, RRefError> {
        self.remote_with_timeout(to, function, arguments, None)
    }

    /// [`RRefs::remote`] with a limit to how long the owner may take to accept the creation, which it does
    /// before the function runs. `None`: as long as [`RRefOptions::with_retries`] goes on. A time below 1 ms
    /// counts as 1 ms. Ignored for a creation on this worker, which accepts it at once.
    ///
    /// After the timeout each use of the reference fails with [`RRefError::CreationTimedOut`], until the owner
    /// has reported whether it accepted the creation; if so, the reference can be used.
    ///
    /// # Errors
    /// As [`RRefs::remote`].
    pub fn remote_with_timeout<'a, A: Serialize, R: Send + Sync + 'static>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
        timeout: Option<Duration>,
    ) -> Result<RRef<R>, RRefError> {
        let runtime = self.runtime()?;
        let owner = runtime.agent.worker(to)?.id;
        let type_name = type_name_of::<R>();
        let cell = runtime.create(owner, None, function, &arguments, type_name, timeout)?;
        Ok(RRef::of(cell))
    }

    /// Calls a registered function and blocks until its result arrives, for at most the agent's timeout.
    /// References may be among the arguments and in the result.
    ///
    /// # Errors
    /// [`RRefError::Function`] if the function failed; [`RRefError::Rpc`] if the call failed, as after a
    /// timeout; [`RRefError::Codec`] or [`RRefError::Refused`] if the arguments or the result cannot be sent;
    /// [`RRefError::NotAttached`]; [`RRefError::Shutdown`].
    pub fn call<'a, A: Serialize, R: DeserializeOwned>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
    ) -> Result<R, RRefError> {
        self.call_with(to, function, arguments, CallOptions::default())
    }

    /// [`RRefs::call`] with options, which set the timeout.
    ///
    /// # Errors
    /// As [`RRefs::call`].
    pub fn call_with<'a, A: Serialize, R: DeserializeOwned>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
        options: CallOptions,
    ) -> Result<R, RRefError> {
        let runtime = self.runtime()?;
        runtime
            .call_function(to.into(), function, &arguments, options)?
            .wait(runtime)
    }

    /// [`RRefs::call`] without blocking.
    ///
    /// # Errors
    /// Those that are known at once; the future reports the others.
    pub fn call_async<'a, A: Serialize, R: DeserializeOwned + Clone + Send + 'static>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
        options: CallOptions,
    ) -> Result<RRefFuture<R>, RRefError> {
        let runtime = self.runtime()?;
        let call = runtime.call_function(to.into(), function, &arguments, options)?;
        Ok(call.into_future(runtime))
    }

    /// All tables at one moment, for people to read: values, users, and messages under way. Takes time in
    /// proportion to the tables.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`].
    pub fn snapshot(&self) -> Result<Snapshot, RRefError> {
        let runtime = self.runtime()?;
        Ok(runtime.step(RunOn::AgentThread, |inner, now| {
            runtime.collect_drops_in_step(inner, now);
            inner.context.snapshot(now)
        }))
    }

    /// The number of entries of each table. Takes time in proportion to the tables.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`].
    pub fn sizes(&self) -> Result<TableSizes, RRefError> {
        let runtime = self.runtime()?;
        Ok(runtime.step(RunOn::AgentThread, |inner, now| {
            runtime.collect_drops_in_step(inner, now);
            inner.context.sizes()
        }))
    }

    /// Checks that the tables are consistent. Takes time in proportion to the tables.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`]; [`RRefError::Refused`] with the first violated invariant, which is a defect
    /// of this crate or the doing of a worker that breaks the protocol.
    pub fn check_invariants(&self) -> Result<(), RRefError> {
        let checked = self.runtime()?.lock().context.check_invariants();
        checked.map_err(|sentence| RRefError::Refused(sentence.into()))
    }

    /// The four counters of PyTorch's debug info, by their names there.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`].
    pub fn debug_info(&self) -> Result<[(&'static str, usize); 4], RRefError> {
        let sizes = self.sizes()?;
        Ok([
            ("num_owner_rrefs", sizes.owners),
            ("num_pending_users", sizes.pending_users),
            ("num_forks", sizes.forks),
            ("num_pending_futures", sizes.pending_futures),
        ])
    }
}

impl fmt::Debug for RRefs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RRefs")
            .field(&self.hub.runtime.get().map(|runtime| runtime.agent.me()))
            .finish()
    }
}
