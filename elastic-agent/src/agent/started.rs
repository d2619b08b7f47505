//! The workers that an agent has started.

use std::time::Duration;

use c10d_socket::{Credentials, HostPort};
use c10d_store::StoreAddress;

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
    /// The role rank of the worker with local rank 0; those of the others follow.
    pub first_role_rank: usize,
    /// The number of workers of this role in the round.
    pub role_world_size: usize,
    /// The address of the workers' store; of one that moves, where it was when the round began.
    pub master: HostPort,
    /// Where to connect to it: [`BootstrapInfo::address`](elastic_rendezvous::BootstrapInfo::address).
    pub address: StoreAddress,
    /// The relay on this node through which the workers reach the store; `None` if they connect to it.
    pub relay: Option<HostPort>,
    /// The network interface with this node's address between the nodes; `None` if there is one node, or the nodes meet
    /// at loopback.
    pub interface: Option<String>,
    /// What clients of the store must have, as in [`BootstrapInfo`](elastic_rendezvous::BootstrapInfo).
    pub credentials: Option<Credentials>,
    /// Whether an agent serves the workers' store; otherwise the worker with rank 0 will.
    pub is_agent_store: bool,
    /// Whether the workers were forked with [preloaded](crate::PreloadOptions) modules.
    pub are_preloaded: bool,
    /// How often this agent has started workers before.
    pub restarts: usize,
    /// How many restarts after failures this node had used by then.
    pub restarts_used: usize,
    /// The membership group of the workers (`--keep-workers`); `None` if the death of a worker restarts all workers.
    pub membership: Option<String>,
    /// How long the rendezvous took.
    pub rendezvous: Duration,
    /// How long it then took to know the ranks, with the start of the relay.
    pub ranks: Duration,
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
            first_role_rank: 0,
            role_world_size: workers.len(),
            address: master.clone().into(),
            master,
            relay: None,
            interface: None,
            credentials: None,
            is_agent_store: true,
            are_preloaded: false,
            restarts: 0,
            restarts_used: 0,
            membership: None,
            rendezvous: Duration::ZERO,
            ranks: Duration::ZERO,
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
