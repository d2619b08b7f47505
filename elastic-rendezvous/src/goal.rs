//! The operations that a handler requests from its loop, and their results.

use crate::node::NodeId;

/// An operation of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    Join,
    Close,
    /// Closes the rendezvous as the last operation of the handler.
    Shutdown,
    Leave,
    /// Reads the state.
    Read,
}

/// The state of the rendezvous when a goal was reached.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) round: i64,
    pub(crate) is_closed: bool,
    /// The rank of this node after [`Goal::Join`], otherwise 0.
    pub(crate) rank: usize,
    /// The nodes in the order of their ranks.
    pub(crate) nodes: Vec<NodeId>,
}
