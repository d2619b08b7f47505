//! Nodes that have joined a rendezvous, for the measurements of a store.

use std::time::Duration;

use c10d_store::StoreAddress;

use super::agreement::check;
use super::kernel::now;
use super::node::Job;
use super::options::Victim;
use super::processes::Processes;
use super::protocol::{Joined, Order, Report};
use super::round::groups;
use crate::failure::Failure;

/// torchrun's default.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The most nodes of a process.
const NODES_PER_PROCESS: usize = 2500;

/// Nodes at rest. Dropping them kills their processes.
#[derive(Debug)]
pub(crate) struct JoinedNodes {
    _processes: Processes,
    /// From the start signal until the last node knew its rank. All were connected before.
    pub(crate) time: Duration,
}

impl JoinedNodes {
    /// In a store that has had no rendezvous yet.
    pub(crate) fn join(store: StoreAddress, nodes: usize) -> Result<Self, Failure> {
        let job = Job {
            store,
            nodes,
            keep_alive: KEEP_ALIVE.as_millis() as u64,
            nodes_per_connection: 1,
        };
        let groups = groups(nodes, NODES_PER_PROCESS, Victim::None);
        let mut processes = Processes::start(&job, &groups)?;
        let start = now();
        for process in 0..processes.len() {
            processes.order(process, &Order::Start)?;
        }
        let mut joined = Joined::default();
        while joined.ranks.len() < nodes {
            if let Report::Joined(more) = processes.next("joining")? {
                joined.merge(more);
            }
        }
        check(&joined, nodes, 0)?;
        Ok(Self {
            _processes: processes,
            time: joined.last_at.saturating_sub(start),
        })
    }
}
