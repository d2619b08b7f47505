//! The ranks of one worker.

/// The place of one worker in a round.
///
/// A *group* is the workers of one node, so a group rank is a node's rank. A *role* names what workers do
/// (`--role`); in a job with a single role, role ranks equal global ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Among all workers, from 0.
    pub rank: usize,
    /// Among the workers of this node, from 0.
    pub local_rank: usize,
    /// The node's rank among the nodes, from 0.
    pub group_rank: usize,
    /// Among the workers of this role, from 0.
    pub role_rank: usize,
    /// How many workers this node has.
    pub local_world_size: usize,
    /// How many workers the round has.
    pub world_size: usize,
    /// How many nodes the round has.
    pub group_world_size: usize,
    /// How many workers of the round have this role.
    pub role_world_size: usize,
}
