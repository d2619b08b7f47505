//! The ranks of a group of survivors, and the ranks that it has replaced or left out: they cannot be a cause.

use std::collections::{BTreeMap, BTreeSet};

use c10d_membership::{EndReason, GroupStage, GroupStatus, MemberStatus, status_of};
use c10d_store::{GroupRecord, Snapshot};

use crate::launched::Launched;

/// The group of the workers of `c10d run --keep-workers`. The id of a member is its worker's rank.
#[derive(Debug)]
pub(crate) struct Members {
    name: Vec<u8>,
    /// The ranks of the last generation that are still members of it.
    pub(crate) ranks: BTreeSet<usize>,
    /// The ranks that died, were evicted, or wait to enter, and that the group does not need.
    pub(crate) left_out: BTreeSet<usize>,
}

impl Members {
    /// The group that the launchers have announced last, if a process has opened it.
    pub(crate) fn new(snapshot: &Snapshot, launched: &Launched) -> Option<Self> {
        let mut nodes = launched.nodes.iter().rev();
        let announced = nodes.find_map(|node| node.announced.membership.as_deref())?;
        let mut groups = snapshot.groups.iter();
        let group = groups.find(|group| own_name(group) == announced.as_bytes())?;
        let status = status_of(group)?;
        let members = status.members.iter();
        let by_rank: BTreeMap<usize, &MemberStatus> = members
            .filter_map(|it| Some((usize::try_from(it.member.id.0).ok()?, it)))
            .collect();
        let is_in = |rank: usize| by_rank.get(&rank).is_some_and(|it| it.rank.is_some());
        let is_awaited = |rank: usize| by_rank.get(&rank).is_some_and(|it| it.is_awaited);
        let workers = launched.workers().map(|worker| worker.worker.rank);
        let mut left_out: BTreeSet<usize> = workers
            .filter(|&rank| !is_in(rank) && !is_awaited(rank))
            .collect();
        if status.generation.is_none() && !goes_on(status) {
            left_out.clear();
        } else if !goes_on(status) {
            // The group waits for as many members as its last generation has lost.
            let lost = status.lost.iter().map(|member| member.id.0);
            for rank in lost.filter_map(|id| usize::try_from(id).ok()) {
                left_out.remove(&rank);
            }
        }
        Some(Self {
            name: group.name.to_vec(),
            ranks: by_rank
                .keys()
                .copied()
                .filter(|&rank| is_in(rank))
                .collect(),
            left_out,
        })
    }

    /// Whether this is the group with this name.
    pub(crate) fn is_of(&self, name: &[u8]) -> bool {
        self.name == name
    }
}

/// The name as clients and launchers have it.
fn own_name(group: &GroupRecord) -> &[u8] {
    group.name.strip_prefix(b"/").unwrap_or(&group.name)
}

/// Whether a generation works.
pub(crate) const fn is_whole(status: &GroupStatus) -> bool {
    matches!(status.stage, GroupStage::Committed | GroupStage::Changing)
}

/// Whether the remaining members are enough: they work, agree on their next generation, or have finished.
const fn goes_on(status: &GroupStatus) -> bool {
    match status.stage {
        GroupStage::Breaking | GroupStage::Forming => false,
        GroupStage::Ended(reason) => matches!(reason, EndReason::Finished),
        _ => true,
    }
}
