//! The state of a group, for its owner and for people, and how a group reports it.

use std::fmt;
use std::time::Duration;

use super::{Group, GroupState};
use crate::message::{EndReason, Reason};
use crate::record::{Attempt, MemberKey, Record};

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

/// The activity of a group: a [`GroupState`] in a word.
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

/// The most departures that a status has.
const DEPARTURES_MAX: usize = 8;

impl Group {
    /// Returns the state of the group. Takes time in the order of its members.
    pub fn status(&self, now: Duration) -> GroupStatus {
        let kept = self.kept();
        let committed = kept.committed.as_deref();
        GroupStatus {
            stage: self.stage(),
            attempt: kept.last,
            generation: committed.map(|record| record.attempt),
            size: committed.map_or(0, |record| record.seats.len()),
            time_left: self.wake_at().map(|at| at.saturating_sub(now)),
            stopped_for: self.stopped_at().map(|at| now.saturating_sub(at)),
            members: self.member_statuses().collect(),
            departures: self.roster.evictions().take(DEPARTURES_MAX).collect(),
            lost: committed.map_or_else(Vec::new, |record| self.lost_of(record)),
        }
    }

    fn lost_of(&self, record: &Record) -> Vec<MemberKey> {
        let members = record.seats.iter().map(|seat| seat.member);
        members.filter(|member| !self.has_member(*member)).collect()
    }

    fn stage(&self) -> GroupStage {
        match self.state() {
            GroupState::Forming { .. } => GroupStage::Forming,
            GroupState::Breaking { .. } => GroupStage::Breaking,
            GroupState::Proposed { .. } => GroupStage::Proposed,
            GroupState::Calling { .. } => GroupStage::Calling,
            GroupState::Committed { change: None, .. } => GroupStage::Committed,
            GroupState::Committed { .. } => GroupStage::Changing,
            GroupState::Ended(reason) => GroupStage::Ended(*reason),
        }
    }

    fn member_statuses(&self) -> impl Iterator<Item = MemberStatus> {
        let generation = self.committed.as_ref().map(|record| record.attempt);
        self.roster.iter().map(move |(member, entry)| {
            let is_awaited = match &self.state {
                GroupState::Proposed { attempt, .. } => entry.is_missing(*attempt),
                GroupState::Calling { record, .. } => {
                    entry.ready == Some(record.attempt) && entry.acked != Some(record.attempt)
                }
                GroupState::Committed {
                    change: Some(change),
                    ..
                } => entry.is_missing(change.attempt),
                GroupState::Committed { return_by, .. } => {
                    return_by.is_some() && entry.rank.is_some() && !entry.is_seen
                }
                _ => false,
            };
            MemberStatus {
                member,
                rank: entry.rank,
                is_awaited,
                has_finished: entry.finished.is_some() && entry.finished == generation,
                boundary: entry.boundary,
            }
        })
    }

    fn stopped_at(&self) -> Option<Duration> {
        match self.state {
            GroupState::Committed { stopped_at, .. } => stopped_at,
            _ => None,
        }
    }
}
