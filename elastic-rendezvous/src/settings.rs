//! What a node brings along of its own: how many nodes it wants, and how long it waits for what.
//!
//! Nodes never exchange their settings: all nodes of a job should use the same.

use std::time::Duration;

/// How long after its deadline a node that joins still undoes what it wrote, before it gives up.
pub(crate) const ROLLBACK_WINDOW: Duration = Duration::from_secs(5);

/// The settings of a dynamic rendezvous, with PyTorch's defaults
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousSettings {
    /// Which job this is.
    pub run_id: String,
    /// So many nodes suffice, after the last call.
    pub min_nodes: usize,
    /// So many nodes complete a round at once.
    pub max_nodes: usize,
    /// How long a join may take. 600 s.
    pub join_timeout: Duration,
    /// How long a round stays open for more once enough nodes are there. 30 s.
    pub last_call_timeout: Duration,
    /// How long closing may take. 30 s.
    pub close_timeout: Duration,
    /// How long sending one sign of life may take. 5 s.
    pub heartbeat_timeout: Duration,
    /// How often a node gives a sign of life. 5 s.
    pub keep_alive_interval: Duration,
    /// A node that misses so many in a row is taken for dead. 3.
    pub keep_alive_max_attempt: u32,
    /// The longest random pause after another node was faster in writing. Zero leaves the choice to
    /// the executor.
    pub cas_backoff_max: Duration,
}

impl RendezvousSettings {
    /// PyTorch's defaults for a job of `min_nodes` to `max_nodes` nodes.
    #[must_use]
    pub fn new(run_id: impl Into<String>, min_nodes: usize, max_nodes: usize) -> Self {
        Self {
            run_id: run_id.into(),
            min_nodes,
            max_nodes,
            join_timeout: Duration::from_secs(600),
            last_call_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_max_attempt: 3,
            cas_backoff_max: Duration::ZERO,
        }
    }

    /// How long a node may be silent before it is taken for dead.
    #[must_use]
    pub fn dead_after(&self) -> Duration {
        self.keep_alive_interval
            .saturating_mul(self.keep_alive_max_attempt)
    }
}
