//! The operations that a handler requests from its loop, their results, and the steps in between that are recorded.

use crate::values::node::NodeId;

/// An operation of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    Join,
    /// Joins the next round. A running round admits this node if its members have opened it.
    Enter,
    Close,
    /// Closes the rendezvous as the last operation of the handler.
    Shutdown,
    Leave,
    /// Leaves the round that the node is a member of, to join another round later.
    Exit,
    /// Reads the state.
    Read,
}

/// The state of the rendezvous when a goal was reached.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) round: i64,
    pub(crate) is_closed: bool,
    /// After [`Goal::Join`] and [`Goal::Enter`].
    pub(crate) joined: Option<Joined>,
}

/// The place of this node in a complete round.
#[derive(Debug, PartialEq)]
pub(crate) struct Joined {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// The node with rank 0.
    pub(crate) first: NodeId,
    /// Whether the round has exactly the nodes of the last round that this node joined. False if unknown.
    pub(crate) is_same_world: bool,
    /// The nodes in the order of their ranks; empty if this node has only their number.
    pub(crate) nodes: Vec<NodeId>,
    /// Whether the round was running already.
    pub(crate) has_entered: bool,
    /// Whether a member of the last round is not in this one.
    pub(crate) has_lost_members: bool,
}

/// An operation of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Leaves the current round, if the node is a member.
    Exit,
    /// Joins the next round that completes.
    Join,
    /// Enters the running round if its members have opened it. Otherwise does the same as
    /// [`Operation::Join`].
    Enter,
    /// Closes the rendezvous for all nodes.
    Close,
    /// Writes a heartbeat if one is due.
    KeepAlive,
    /// Removes the node from all lists.
    Leave,
}

impl Goal {
    pub(crate) const fn is_join(self) -> bool {
        matches!(self, Self::Join | Self::Enter)
    }
}

impl Operation {
    pub(crate) const fn is_join(self) -> bool {
        matches!(self, Self::Join | Self::Enter)
    }
}

/// The answer of a complete round's members to a node which applies to enter it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing: their workers have not all started, or they let no node in.
    Unknown,
    /// The round admits nodes.
    Open,
    /// The round has admitted nodes, and is about to end.
    Over,
}

/// The reason why an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationError {
    Closed,
    Timeout,
    GracefulExit,
}

/// A step to record. Its texts are only created for a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    HostsStore,
    MarksComplete {
        round: i64,
    },
    MarksClosed,
    Joined {
        round: i64,
        rank: usize,
        world_size: usize,
    },
    Closed,
    Failed(Method, Failure),
}

/// The methods whose failures are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    CreateBackend,
    NextRendezvous,
    IsClosed,
    SetClosed,
    Shutdown,
    KeepAlive,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The closest error class of PyTorch.
    pub(crate) class: &'static str,
    pub(crate) message: String,
    /// The error and its causes, one per line.
    pub(crate) trace: String,
}
