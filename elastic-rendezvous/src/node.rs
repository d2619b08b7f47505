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

impl NodeId {
    /// The node for people: `node1 (pid 42)`. Its address comes from others, so control characters are
    /// escaped, and at most 255 characters are shown.
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
        const ADDRESS_SHOWN_MAX: usize = 255;
        let mut characters = self.0.addr.chars();
        for character in characters.by_ref().take(ADDRESS_SHOWN_MAX) {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                write!(f, "{character}")?;
            }
        }
        if characters.next().is_some() {
            f.write_str("...")?;
        }
        write!(f, " (pid {})", self.0.pid)
    }
}

/// `addr_pid_local_id`, as in PyTorch's logs.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr, self.pid, self.local_id)
    }
}
