//! Which ranks the workers of each node get. Pure.

use std::collections::BTreeMap;

use crate::assignment::Assignment;

/// The workers of one node, as it describes them to the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleInfo {
    /// The role of the workers.
    pub role: String,
    /// How many workers the node has.
    pub local_world_size: usize,
}

/// The ranks of one node's workers, which are consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankBlock {
    /// The global rank of the node's first worker.
    pub first_rank: usize,
    /// How many workers the round has.
    pub world_size: usize,
    /// The rank of the node's first worker within its role.
    pub first_role_rank: usize,
    /// How many workers of the round have that role.
    pub role_world_size: usize,
}

impl RankBlock {
    /// The assignment of the worker `local_rank` of the node `group_rank`.
    #[must_use]
    pub fn assignment(
        &self,
        group_rank: usize,
        group_world_size: usize,
        local_world_size: usize,
        local_rank: usize,
    ) -> Assignment {
        Assignment {
            rank: self.first_rank + local_rank,
            local_rank,
            group_rank,
            role_rank: self.first_role_rank + local_rank,
            local_world_size,
            world_size: self.world_size,
            group_world_size,
            role_world_size: self.role_world_size,
        }
    }

    /// The numbers that nodes write for each other, in PyTorch's order.
    pub(crate) const fn numbers(&self) -> [usize; 4] {
        [
            self.first_rank,
            self.world_size,
            self.first_role_rank,
            self.role_world_size,
        ]
    }

    /// The block with these [numbers](Self::numbers) of another node.
    pub(crate) fn from_numbers(numbers: [u64; 4]) -> Option<Self> {
        let [first_rank, world_size, first_role_rank, role_world_size] = numbers.map(Self::number);
        Some(Self {
            first_rank: first_rank?,
            world_size: world_size?,
            first_role_rank: first_role_rank?,
            role_world_size: role_world_size?,
        })
    }

    /// Checks a number of ranks that another node has written: jobs have fewer, and sums stay far from overflow.
    pub(crate) fn number(number: u64) -> Option<usize> {
        usize::try_from(number).ok().filter(|_| number <= 1 << 48)
    }

    /// The ranks when all nodes have the same number of workers, of one role: no exchange is needed
    /// (`TORCH_ELASTIC_WORKER_IDENTICAL` in PyTorch, on which all nodes must agree).
    #[must_use]
    pub fn identical(group_rank: usize, group_world_size: usize, local_world_size: usize) -> Self {
        let first_rank = group_rank.saturating_mul(local_world_size);
        let world_size = group_world_size.saturating_mul(local_world_size);
        Self {
            first_rank,
            world_size,
            first_role_rank: first_rank,
            role_world_size: world_size,
        }
    }
}

/// Assigns ranks in the order of the nodes' group ranks.
///
/// ```
/// use elastic_agent::{RoleInfo, assign_ranks};
///
/// let node = |role: &str, local_world_size| RoleInfo { role: role.to_owned(), local_world_size };
/// let blocks = assign_ranks(&[node("trainer", 2), node("eval", 1), node("trainer", 1)]);
/// assert_eq!((blocks[2].first_rank, blocks[2].world_size), (3, 4));
/// assert_eq!((blocks[2].first_role_rank, blocks[2].role_world_size), (2, 3));
/// ```
#[must_use]
pub fn assign_ranks(nodes: &[RoleInfo]) -> Vec<RankBlock> {
    let mut world_size: usize = 0;
    let mut role_sizes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut firsts = Vec::with_capacity(nodes.len());
    for node in nodes {
        let role_size = role_sizes.entry(&node.role).or_default();
        firsts.push((world_size, *role_size));
        world_size = world_size.saturating_add(node.local_world_size);
        *role_size = role_size.saturating_add(node.local_world_size);
    }
    let blocks = nodes.iter().zip(firsts);
    blocks
        .map(|(node, (first_rank, first_role_rank))| RankBlock {
            first_rank,
            world_size,
            first_role_rank,
            role_world_size: role_sizes.get(node.role.as_str()).copied().unwrap_or(0),
        })
        .collect()
}
