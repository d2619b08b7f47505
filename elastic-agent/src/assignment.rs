//! Who a worker is among the others.

/// The place of one worker in a round, as the rendezvous and the exchange of roles gave it.
///
/// A *group* is the workers of one node, so a group rank is a node's rank. A *role* is what workers do
/// (`--role`); all nodes of a plain job have the same one, and role numbers then equal global ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Among all workers, from 0.
    pub rank: usize,
    /// Among the workers of this node, from 0.
    pub local_rank: usize,
    /// The node's rank among the nodes.
    pub group_rank: usize,
    /// Among the workers of this role, from 0.
    pub role_rank: usize,
    /// How many workers this node has.
    pub local_world_size: usize,
    /// How many workers there are in all.
    pub world_size: usize,
    /// How many nodes there are.
    pub group_world_size: usize,
    /// How many workers have this role.
    pub role_world_size: usize,
}
