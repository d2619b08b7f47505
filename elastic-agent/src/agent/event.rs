//! What an agent tells its listeners about its workers.

use std::fmt;
use std::sync::Arc;

use c10d_socket::{Credentials, HostPort};

use crate::worker::WorkerExit;

/// A callback for the events of an agent.
pub type AgentListener = Arc<dyn Fn(&AgentEvent<'_>) + Send + Sync>;

/// An event of an agent.
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentEvent<'e> {
    /// All workers of this node have started.
    WorkersStarted(&'e StartedWorkers),
    /// A worker has exited. Called by a thread of the worker's own, for a worker that exits very early
    /// before [`WorkersStarted`](Self::WorkersStarted). Must not block.
    WorkerExited(&'e WorkerExit),
    /// A worker has failed, and the others are still running. The agent stops them when the listeners
    /// return, so a listener can still observe the job as it is; it should take a second at most.
    WorkerFailed(&'e WorkerExit),
    /// From now on workers are exiting because the agent stops them.
    Stopping,
    /// The agent joins another round, to start the workers again.
    Restarting {
        /// Why, as text for a log.
        why: &'e str,
    },
}

/// The workers that an agent has started in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartedWorkers {
    /// The number of the round.
    pub round: i64,
    /// The node's rank in the round.
    pub node_rank: usize,
    /// The number of nodes of the round.
    pub nodes: usize,
    /// The number of workers of the round.
    pub world_size: usize,
    /// The address of the workers' store.
    pub master: HostPort,
    /// The relay on this node through which the workers reach the store; `None` if they connect to it.
    pub relay: Option<HostPort>,
    /// What clients of the store must have, as in [`BootstrapInfo`](elastic_rendezvous::BootstrapInfo).
    pub credentials: Option<Credentials>,
    /// Whether an agent serves the workers' store; otherwise the worker with rank 0 will.
    pub is_agent_store: bool,
    /// How often this agent has started workers before.
    pub restarts: usize,
    /// The workers, in the order of their local ranks.
    pub workers: Vec<StartedWorker>,
}

/// A worker that an agent has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartedWorker {
    /// The worker's global rank.
    pub rank: usize,
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The process id.
    pub pid: u32,
}

impl StartedWorkers {
    /// Workers of a single node that are the whole job, for tests of listeners.
    #[must_use]
    pub fn alone(master: HostPort, workers: Vec<StartedWorker>) -> Self {
        Self {
            round: 0,
            node_rank: 0,
            nodes: 1,
            world_size: workers.len(),
            master,
            relay: None,
            credentials: None,
            is_agent_store: true,
            restarts: 0,
            workers,
        }
    }
}

impl StartedWorker {
    /// A started worker.
    #[must_use]
    pub const fn new(rank: usize, local_rank: usize, pid: u32) -> Self {
        Self {
            rank,
            local_rank,
            pid,
        }
    }
}

/// The listeners of an agent.
#[derive(Clone, Default)]
pub(super) struct Listeners(Vec<AgentListener>);

impl Listeners {
    pub(super) fn add(&mut self, listener: AgentListener) {
        self.0.push(listener);
    }

    pub(super) fn notify(&self, event: &AgentEvent<'_>) {
        for listener in &self.0 {
            listener(event);
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}
