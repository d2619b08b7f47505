//! The mark that shows whether a node is connected to the store.

use std::collections::BTreeMap;

use crate::values::node::NodeId;

/// Whether a node is connected, as the store records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The node has removed its mark at its exit, or never sets a mark, like nodes of PyTorch.
    Missing,
    Connected,
    /// The connection of the node has closed before the node removed its mark.
    Closed,
}

/// The marks of the requested nodes.
pub(crate) type Marks = BTreeMap<NodeId, Mark>;
