//! The state of a group, as values.

use std::time::Duration;

use super::{Group, GroupState};
use crate::identity::MemberKey;
use crate::record::Record;
use crate::status::{GroupStage, GroupStatus, MemberStatus};

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
