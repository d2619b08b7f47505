//! The identity of a node.

use std::fmt;
use std::sync::Arc;

use c10d_socket::printable;

/// The most characters of an address that [`NodeId::named`] shows: a full host name.
const ADDRESS_SHOWN_MAX: usize = 255;

/// Identifies one handler in a rendezvous.
///
/// Ranks follow the order of ids: by address (by code point, so `node10` sorts before `node2`), then
/// process, then handler. In PyTorch: `_NodeDesc`
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// The address that the node states: its full host name, or the configured one.
    pub addr: Arc<str>,
    /// The process id of the node's agent.
    pub pid: i64,
    /// The number of the handler within the process. PyTorch counts from 0, and this crate from 1.
    pub local_id: i64,
}

impl NodeId {
    /// Creates an id from its parts.
    #[must_use]
    pub fn new(addr: impl Into<Arc<str>>, pid: i64, local_id: i64) -> Self {
        Self {
            addr: addr.into(),
            pid,
            local_id,
        }
    }

    /// Formats the node for messages: `node1 (pid 42)`. Peers supply the address, so it is
    /// [printable](c10d_socket::printable) and has at most 255 characters.
    #[must_use]
    pub fn named(&self) -> NamedNode<'_> {
        NamedNode(self)
    }
}

/// The text of [`NodeId::named`].
#[derive(Debug, Clone, Copy)]
pub struct NamedNode<'n>(&'n NodeId);

impl fmt::Display for NamedNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addr = printable(self.0.addr.as_bytes(), ADDRESS_SHOWN_MAX);
        write!(f, "{addr} (pid {})", self.0.pid)
    }
}

/// Formats the id as `addr_pid_local_id`, like PyTorch's logs.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr, self.pid, self.local_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_as_in_pytorchs_logs() {
        let node = NodeId::new("gpu1.example", 4711, 3);
        assert_eq!(node.to_string(), "gpu1.example_4711_3");
        assert_eq!(node.named().to_string(), "gpu1.example (pid 4711)");
    }
}
