//! Starts an agent, and ends it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::Store;

use super::handle::AgentHandle;
use super::service::Service;
use crate::error::StartError;
use crate::options::AgentOptions;
use crate::registry::Registry;
use crate::runtime::Runtime;
use crate::termination::TerminationError;

/// The agent of a worker: it serves the functions of its [`Registry`] to the other workers of its group, and calls
/// their functions. See the [crate's documentation](crate) for an example.
///
/// Dropping it ends it at once, like [`Agent::shutdown_now`]. An agent belongs to the process that started it: in a
/// forked child every operation is an error or does nothing, and dropping the child's copy does not end the agent.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use c10d_store::HashStore;
/// use rpc_agent::{Agent, AgentOptions, Registry};
///
/// let mut registry = Registry::new();
/// registry.register("reverse", |_, payload| Ok(payload.iter().rev().copied().collect()))?;
/// let options = AgentOptions::new("worker0", 0).with_world_size(1).with_host("127.0.0.1");
/// let agent = Agent::start(options, registry, Arc::new(HashStore::new()))?;
///
/// let answer = agent.handle().call("worker0", "reverse").send_bytes("abc");
/// assert_eq!(answer.wait()?, "cba");
/// agent.shutdown(Duration::from_secs(30))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Agent {
    handle: AgentHandle,
}

impl Agent {
    /// Joins the group, whose members meet in `store`, and serves the functions of `registry`.
    ///
    /// Blocks until all workers of a group of fixed size have joined, at most for
    /// [`AgentOptions::with_start_timeout`].
    ///
    /// # Errors
    /// [`StartError`]. A duplicate name or rank is an error on every worker of a group of fixed size,
    /// and names both claimants. If one of them cannot start, for example because its port is in use, all other workers fail
    /// within a second, and name it.
    pub fn start(
        options: AgentOptions,
        registry: Registry,
        store: Arc<dyn Store>,
    ) -> Result<Self, StartError> {
        let runtime = Runtime::open(options, registry.functions(), store)?;
        let handle = AgentHandle::new(runtime);
        let service = Service {
            agent: handle.clone(),
            registry,
        };
        // On failure the agent is dropped, which ends what was started.
        let agent = Self { handle };
        let started = agent.handle.runtime().start(Arc::new(service));
        let started = started.map_err(StartError::Thread);
        started.inspect_err(|error| agent.handle.runtime().publish_failure(error))?;
        Ok(agent)
    }

    /// Returns the handle that makes calls from this worker. Clone it where an owned handle is needed, for example
    /// for another thread.
    #[must_use]
    pub fn handle(&self) -> &AgentHandle {
        &self.handle
    }

    /// Waits until no call is outstanding anywhere in the group. All workers of the group must call it.
    ///
    /// Other workers can still call this worker's functions. Blocks until all workers have arrived and none of them
    /// has pending work, at most for `timeout`. `None` waits indefinitely, and zero checks once.
    ///
    /// # Errors
    /// [`TerminationError`], which names the workers that had not arrived.
    pub fn join(&self, timeout: impl Into<Option<Duration>>) -> Result<(), TerminationError> {
        self.handle.here()?.join(deadline_of(timeout))
    }

    /// Ends the agent together with all other agents of the group: no worker leaves while another still needs it,
    /// however calls are nested. All workers of a group of fixed size must call it. In a group that workers join and
    /// leave at any time, this worker leaves when its own calls have ended.
    ///
    /// Blocks at most for `timeout` until all are ready to end (`None` waits indefinitely, and zero checks once), and
    /// then until the functions that run here have returned. The agent has ended afterwards, even after an error. A
    /// second call does nothing, and a concurrent call waits for the first call.
    ///
    /// A function or a callback of this agent must not call it, because it would wait for itself: there the call
    /// fails at once.
    ///
    /// # Errors
    /// [`TerminationError`], which names the workers that had not arrived.
    pub fn shutdown(&self, timeout: impl Into<Option<Duration>>) -> Result<(), TerminationError> {
        self.handle.here()?.shutdown(deadline_of(timeout))
    }

    /// Ends the agent at once: calls and retries under way fail, and so do other workers' calls to this worker.
    /// Blocks until the running functions have returned. A second call does nothing.
    pub fn shutdown_now(&self) {
        if let Ok(runtime) = self.handle.here() {
            runtime.stop();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shutdown_now();
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Agent").field(self.handle.me()).finish()
    }
}

fn deadline_of(timeout: impl Into<Option<Duration>>) -> Deadline {
    timeout.into().map_or(Deadline::NEVER, |timeout| {
        Deadline::after(Instant::now(), timeout)
    })
}
