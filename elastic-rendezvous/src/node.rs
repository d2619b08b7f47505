//! The name of a node.

use std::fmt;
use std::sync::Arc;

/// One handler of a rendezvous: where it runs, and which one of there.
///
/// The order is the one by which ranks are given: by address (code point by code point, so `node10`
/// comes before `node2`), then process, then handler. In PyTorch: `_NodeDesc`
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// The address that the node gives itself: its full host name, or what it was told.
    pub addr: Arc<str>,
    /// The process.
    pub pid: i64,
    /// The handler within the process, counted from 0.
    pub local_id: i64,
}

impl NodeId {
    /// A node by its three parts.
    #[must_use]
    pub fn new(addr: impl Into<Arc<str>>, pid: i64, local_id: i64) -> Self {
        Self {
            addr: addr.into(),
            pid,
            local_id,
        }
    }
}

/// `addr_pid_local_id`, as in PyTorch's logs.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr, self.pid, self.local_id)
    }
}
