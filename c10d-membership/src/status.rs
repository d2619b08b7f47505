//! The state of a group, for its owner and for people.

use crate::event::{EndReason, Reason};
use crate::identity::{Attempt, MemberKey};
use std::fmt;
use std::time::Duration;

/// The state of a group at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStatus {
    /// The activity of the group.
    pub stage: GroupStage,
    /// The newest attempt; its count is 0 before the first.
    pub attempt: Attempt,
    /// The last generation, whole or broken.
    pub generation: Option<Attempt>,
    /// The number of members of that generation.
    pub size: usize,
    /// The remaining time until the group continues without the members that it waits for; `None` without a time
    /// limit.
    pub time_left: Option<Duration>,
    /// The time for which a member has been waiting at a step boundary, or after its last step. A server does not
    /// send it to a client.
    pub stopped_for: Option<Duration>,
    /// The processes of the group and the processes that wait to join it, by id.
    pub members: Vec<MemberStatus>,
    /// The last processes that ceased to be members, or whose death was reported, and why; the newest first, at most
    /// 8. Only processes since the last restart of the service. A server does not send them to a client.
    pub departures: Vec<(MemberKey, Reason)>,
    /// The processes of the last generation that are no longer members, by rank. A server does not send them to a
    /// client.
    pub lost: Vec<MemberKey>,
}

/// The activity of a group: a [`GroupState`](crate::GroupState) in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupStage {
    /// The group waits for its first members.
    Forming,
    /// Members leave their mesh.
    Proposed,
    /// Members are in torch's call.
    Calling,
    /// A generation works.
    Committed,
    /// A generation works, and stops at a step boundary.
    Changing,
    /// The generation is broken: too few members remain, or the group waits for replacements.
    Breaking,
    /// The group has ended; this state is final.
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
    /// The process that the entry describes.
    pub member: MemberKey,
    /// The rank of the process in the last generation.
    pub rank: Option<u32>,
    /// Whether the group waits for this process now: to be ready, to acknowledge, or to return to a restarted
    /// service.
    pub is_awaited: bool,
    /// Whether the process has done its last step of the generation. A server sends neither this nor `boundary` to a
    /// client.
    pub has_finished: bool,
    /// The number of the last boundary of the generation that the process reached.
    pub boundary: Option<u64>,
}
