//! Where a group is, for its owner and for people.

use std::fmt;
use std::time::Duration;

use crate::attempt::Attempt;
use crate::event::{EndReason, Reason};
use crate::identity::MemberKey;

/// A group at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStatus {
    /// What the group is doing.
    pub stage: GroupStage,
    /// The newest attempt; its count is 0 before the first.
    pub attempt: Attempt,
    /// The last generation, whole or broken.
    pub generation: Option<Attempt>,
    /// How many members that has.
    pub size: usize,
    /// The time until the group goes on without those that it waits for; `None` if it waits for no time.
    pub time_left: Option<Duration>,
    /// For how long a member has been waiting at a step boundary, or after its last step. A server's answer to a client
    /// leaves it out.
    pub stopped_for: Option<Duration>,
    /// The processes of the group and those that wait to be, by id.
    pub members: Vec<MemberStatus>,
    /// The last processes that ceased to be members, or whose death was reported, and why; the newest first, at most 8. Those
    /// since the last restart of the service. A server's answer to a client leaves them out.
    pub departures: Vec<(MemberKey, Reason)>,
    /// The members of the last generation that are no members any more, by rank. A server's answer to a client leaves them out.
    pub lost: Vec<MemberKey>,
}

/// What a group is doing: a [`GroupState`](crate::GroupState) in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupStage {
    /// It waits for its first members.
    Forming,
    /// Members leave their mesh.
    Proposed,
    /// Members are in torch's call.
    Calling,
    /// A generation works.
    Committed,
    /// A generation works, and stops at a step boundary.
    Changing,
    /// Too few members are left, or it waits for replacements.
    Breaking,
    /// Nothing happens any more.
    Ended(EndReason),
}

impl fmt::Display for GroupStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forming => "it waits for its first members",
            Self::Proposed => "members leave their mesh",
            Self::Calling => "members are in torch's call",
            Self::Committed => "it works",
            Self::Changing => "it stops at a step boundary",
            Self::Breaking => "too few members are left, or it waits for replacements",
            Self::Ended(reason) => return write!(f, "it has ended: {reason}"),
        })
    }
}

/// One process of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberStatus {
    /// The process.
    pub member: MemberKey,
    /// Its rank in the last generation.
    pub rank: Option<u32>,
    /// Whether the group waits for it now: to be ready, to acknowledge, or to come back to a restarted service.
    pub is_awaited: bool,
    /// Whether it has done its last step of the generation. A server's answer to a client leaves this and the next out.
    pub has_finished: bool,
    /// The number of the last boundary of the generation at which it was.
    pub boundary: Option<u64>,
}
