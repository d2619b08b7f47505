//! How a complete round changes, as one of its members sees it.

use crate::values::node::NodeId;
use crate::values::report::{LeftNode, LostNode};

/// How the round of a node has changed since it joined. In a [group](crate::GroupStore), each list has at most 16
/// nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Membership {
    /// The nodes that wait for the next round; none while this one is full, because the next would have no
    /// place for them either.
    pub waiting: Vec<NodeId>,
    /// Members that this node or another has dropped as dead, because they wrote no heartbeat.
    pub lost: Vec<LostNode>,
    /// Members that have left the round on their own, to restart or for good.
    pub left: Vec<LeftNode>,
    /// How many members are gone besides: of many departures only some are named, and of those that a holder did not
    /// name before it died, none (docs/spec/rendezvous.md, section 10).
    pub unnamed: usize,
    /// How many nodes are in the round now; `None` if that is not known, as in a group.
    pub members: Option<usize>,
    /// Whether this node is no longer in its round: the others have dropped it as dead, or started the next
    /// round.
    pub is_evicted: bool,
    /// Whether the rendezvous is closed.
    pub is_closed: bool,
}

impl Membership {
    /// How many members have left the round or were lost.
    #[must_use]
    pub fn departed(&self) -> usize {
        self.lost.len() + self.left.len() + self.unnamed
    }
}
