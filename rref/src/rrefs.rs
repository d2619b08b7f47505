//! [`RRefs`]: the references of a worker, from before its agent starts.

use std::fmt;
use std::sync::{Arc, OnceLock};

use c10d_socket::ProcessBound;
use rpc_agent::{AgentHandle, Destination, RegistryId, RpcError, WorkerInfo};
use serde::Serialize;

use crate::call::RRefCall;
use crate::context::TableSizes;
use crate::error::RRefError;
use crate::handle::RRef;
use crate::options::RRefOptions;
use crate::runtime::{RunCreation, RunOn, Runtime};
use crate::value::Value;
use crate::value::type_name_of;

/// The state that the clones of an [`RRefs`] share.
pub(crate) struct Hub {
    pub(crate) creator: Arc<dyn RunCreation>,
    pub(crate) options: RRefOptions,
    pub(crate) registry: RegistryId,
    pub(crate) runtime: OnceLock<ProcessBound<Arc<Runtime>>>,
}

impl Hub {
    /// The runtime, which the first request or [`RRefs::attach`] starts.
    pub(crate) fn runtime(&self, agent: &AgentHandle) -> &Arc<Runtime> {
        if let Some(runtime) = self.runtime.get() {
            return runtime.get_anywhere();
        }
        // Started before it is published, so that the agent is not called under the cell's lock. If two
        // threads start one at once, one is dropped, and its callbacks at the agent do nothing.
        let started = Runtime::start(agent, Arc::clone(&self.creator), &self.options);
        let runtime = self.runtime.get_or_init(|| ProcessBound::new(started));
        runtime.get_anywhere()
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
    pub(crate) hub: Arc<Hub>,
}

impl RRefs {
    pub(crate) const fn of(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    pub(crate) fn runtime(&self) -> Result<&Arc<Runtime>, RRefError> {
        let runtime = self.hub.runtime.get().ok_or(RRefError::NotAttached)?;
        Ok(runtime.get().map_err(RpcError::from)?)
    }

    /// Attaches the references to the agent that was started with their registry. The first request of another
    /// worker does the same; before either, each operation fails with [`RRefError::NotAttached`]. Never blocks.
    ///
    /// # Errors
    /// [`RRefError::Refused`] if the agent was started with another registry.
    pub fn attach(&self, agent: &AgentHandle) -> Result<(), RRefError> {
        // The agent of a parent process cannot be used.
        agent.worker(agent.me().id)?;
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

    /// Returns the name and the id of this worker.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`] before the references are attached to an agent.
    pub fn me(&self) -> Result<WorkerInfo, RRefError> {
        Ok(self.runtime()?.agent.me().clone())
    }

    /// Creates a reference to a value of this worker. Sends nothing until the reference is sent somewhere.
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
    /// The errors of [`RRefs::rref`].
    pub fn rref_opaque<T: Send + Sync + 'static>(&self, value: T) -> Result<RRef<T>, RRefError> {
        let runtime = self.runtime()?;
        let cell = runtime.keep(Value::opaque(value), type_name_of::<T>())?;
        Ok(RRef::of(cell))
    }

    /// Creates a reference to a value of this worker that the program sets later: PyTorch's `OwnerRRef` without a
    /// value.
    ///
    /// [`RRef::set_value`], [`RRef::set_value_opaque`] or [`RRef::set_error`] on any handle of this worker sets it,
    /// even on a handle that returned from another worker. The reference can be sent before; requests for the value
    /// wait for it, each until its own timeout. At the shutdown an unset value becomes an error.
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
    /// The errors of [`RRefs::rref`].
    pub fn rref_without_value<T: Send + Sync + 'static>(&self) -> Result<RRef<T>, RRefError> {
        Ok(RRef::of(self.runtime()?.promise_value::<T>()?))
    }

    /// Begins a call of a registered function of a worker, this one included. It is made when its arguments are sent:
    /// for the result ([`RRefCall::run`], [`RRefCall::send`]) or for a reference to it ([`RRefCall::remote`]).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn f(rrefs: &rref::RRefs) -> Result<(), rref::RRefError> {
    /// let sum = rrefs.call("worker1", "add").remote::<_, i64>((1, 2))?;
    /// assert_eq!(sum.to_here(Duration::from_secs(5))?, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn call<'a>(&'a self, to: impl Into<Destination<'a>>, function: &'a str) -> RRefCall<'a> {
        RRefCall::of_function(self.runtime(), to.into(), function)
    }

    /// Returns the number of entries of each table. Takes time in proportion to the tables.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`] before the references are attached to an agent.
    pub fn sizes(&self) -> Result<TableSizes, RRefError> {
        let runtime = self.runtime()?;
        Ok(runtime.step(RunOn::AgentThread, |inner, now| {
            runtime.collect_drops_in_step(inner, now);
            inner.context.sizes()
        }))
    }

    /// Returns the four counters of PyTorch's debug info, by their names there.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`] before the references are attached to an agent.
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
            .field(&self.runtime().map(|runtime| runtime.agent.me()))
            .finish()
    }
}
