//! The mark of a node that it is connected to the store.

use std::collections::BTreeMap;

use crate::values::node::NodeId;

/// Whether a node is connected, as the store records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The node has said goodbye, or never sets a mark, as nodes of PyTorch.
    Missing,
    Connected,
    /// Its connection has closed without a goodbye.
    Closed,
}

/// The marks of the nodes that were asked for.
pub(crate) type Marks = BTreeMap<NodeId, Mark>;
