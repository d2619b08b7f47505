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

/// The agent of a worker: it serves the functions of its [`Registry`] to the others of its group, and calls theirs.
/// See the [crate's documentation](crate).
///
/// Dropping it ends it at once, as [`Agent::shutdown_now`] does. An agent belongs to the process that started it: in a
/// forked child every operation is an error or does nothing, and dropping its copy ends nothing.
pub struct Agent {
    handle: AgentHandle,
}

impl Agent {
    /// Joins the group, whose members meet in `store`, and serves the functions of `registry`.
    ///
    /// Blocks until all workers of a group of fixed size are there, at most for
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
        let runtime = Runtime::open(options, registry.id(), registry.functions(), store)?;
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

    /// Makes calls from this worker. Clone it where an owned one is needed, as for another thread.
    #[must_use]
    pub fn handle(&self) -> &AgentHandle {
        &self.handle
    }

    /// Waits until no call is outstanding anywhere in the group. All workers of the group must call it.
    ///
    /// The functions of this worker are served on. Blocks until all others have come and none of them
    /// has anything under way, at most for `timeout`. `None` waits indefinitely, and zero checks once.
    ///
    /// # Errors
    /// [`TerminationError`], which names who had not come.
    pub fn join(&self, timeout: impl Into<Option<Duration>>) -> Result<(), TerminationError> {
        self.handle.here()?.join(deadline_of(timeout))
    }

    /// Ends the agent together with all others of the group: no worker leaves while another still needs
    /// it, however calls are nested. All workers of a group of fixed size must call it. Of a group whose
    /// members come and go, this worker leaves when its own calls have ended.
    ///
    /// Blocks at most for `timeout` until all are ready to end (`None` waits indefinitely, and zero checks
    /// once), and then until the functions that run here have returned. The agent has ended afterwards,
    /// even after an error. A second time it does nothing, and from a second thread it waits for the first
    /// one.
    ///
    /// Not for a function or a callback of this agent, which would wait for itself: there it fails at
    /// once.
    ///
    /// # Errors
    /// [`TerminationError`], which names who had not come.
    pub fn shutdown(&self, timeout: impl Into<Option<Duration>>) -> Result<(), TerminationError> {
        self.handle.here()?.shutdown(deadline_of(timeout))
    }

    /// Ends the agent at once: calls and retries that are under way fail, others' calls to this worker
    /// fail, too. Blocks until the functions that run here have returned. A second time it does nothing.
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
