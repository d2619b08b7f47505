//! The members of a group, and those that were evicted.

use crate::message::Reason;
use crate::record::{Attempt, Incarnation, MemberId, MemberKey};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) incarnation: Incarnation,
    pub(super) handle: Arc<str>,
    pub(super) step: u64,
    /// The rank in the last generation.
    pub(super) rank: Option<u32>,
    pub(super) is_leaving: bool,
    /// Whether it has sent something to this life of the service.
    pub(super) is_seen: bool,
    /// The last attempt that waits for it.
    pub(super) required: Option<Attempt>,
    /// The last attempt that it is ready for.
    pub(super) ready: Option<Attempt>,
    /// The last attempt that it has acknowledged.
    pub(super) acked: Option<Attempt>,
    /// The last generation in which it has done its last step.
    pub(super) finished: Option<Attempt>,
    /// The number of the last boundary of this generation at which it was.
    pub(super) boundary: Option<u64>,
}

impl Entry {
    pub(super) fn new(incarnation: Incarnation, handle: Arc<str>, step: u64) -> Self {
        Self {
            incarnation,
            handle,
            step,
            rank: None,
            is_leaving: false,
            is_seen: true,
            required: None,
            ready: None,
            acked: None,
            finished: None,
            boundary: None,
        }
    }

    /// Whether the attempt waits for this member to be ready.
    pub(super) fn is_missing(&self, attempt: Attempt) -> bool {
        self.required == Some(attempt) && self.ready != Some(attempt)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Roster {
    members: BTreeMap<MemberId, Entry>,
    /// How many have a rank in the last generation.
    ranked: usize,
    /// How many want to leave.
    leaving: usize,
    evicted: BTreeMap<MemberId, (Incarnation, Reason)>,
    /// The evicted members, the newest last.
    evictions: VecDeque<(MemberKey, Reason)>,
}

impl Roster {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// How many are remembered.
    pub(super) fn evicted_len(&self) -> usize {
        self.evictions.len()
    }

    pub(super) fn newcomers(&self) -> usize {
        self.members.len() - self.ranked
    }

    pub(super) fn leaving(&self) -> usize {
        self.leaving
    }

    pub(super) fn get(&self, member: MemberKey) -> Option<&Entry> {
        let entry = self.members.get(&member.id)?;
        (entry.incarnation == member.incarnation).then_some(entry)
    }

    pub(super) fn get_mut(&mut self, member: MemberKey) -> Option<&mut Entry> {
        let entry = self.members.get_mut(&member.id)?;
        (entry.incarnation == member.incarnation).then_some(entry)
    }

    pub(super) fn incarnation_of(&self, id: MemberId) -> Option<Incarnation> {
        self.members.get(&id).map(|entry| entry.incarnation)
    }

    /// Returns the members by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MemberKey, &Entry)> {
        self.members.iter().map(|(id, entry)| {
            let incarnation = entry.incarnation;
            let id = *id;
            (MemberKey { id, incarnation }, entry)
        })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.members.values_mut()
    }

    pub(super) fn keys(&self, which: impl Fn(&Entry) -> bool) -> Vec<MemberKey> {
        self.iter()
            .filter(|(_, entry)| which(entry))
            .map(|(member, _)| member)
            .collect()
    }

    pub(super) fn insert(&mut self, member: MemberKey, entry: Entry) {
        self.ranked += usize::from(entry.rank.is_some());
        let old = self.members.insert(member.id, entry);
        debug_assert!(old.is_none(), "{member} is already listed");
    }

    pub(super) fn set_leaving(&mut self, member: MemberKey) {
        if let Some(entry) = self.members.get_mut(&member.id) {
            self.leaving += usize::from(!entry.is_leaving);
            entry.is_leaving = true;
        }
    }

    /// The ranks of a new generation.
    pub(super) fn set_ranks(&mut self, by_rank: impl Iterator<Item = MemberKey>) {
        self.ranked = 0;
        for (rank, member) in (0..).zip(by_rank) {
            if let Some(entry) = self.members.get_mut(&member.id) {
                entry.rank = Some(rank);
                entry.boundary = None;
                self.ranked += 1;
            }
        }
    }

    pub(super) fn remove(&mut self, member: MemberKey) -> Option<Entry> {
        self.get(member)?;
        let entry = self.members.remove(&member.id)?;
        self.ranked -= usize::from(entry.rank.is_some());
        self.leaving -= usize::from(entry.is_leaving);
        Some(entry)
    }

    /// Remembers that a process is no longer a member, and forgets the oldest of more than `max`.
    pub(super) fn evict(&mut self, member: MemberKey, reason: Reason, max: usize) {
        self.evicted.insert(member.id, (member.incarnation, reason));
        self.evictions.push_back((member, reason));
        while self.evictions.len() > max {
            let Some((oldest, _)) = self.evictions.pop_front() else {
                break;
            };
            let newest = self.evicted.get(&oldest.id);
            if newest.is_some_and(|(incarnation, _)| *incarnation == oldest.incarnation) {
                self.evicted.remove(&oldest.id);
            }
        }
    }

    /// The evicted that are remembered, the newest first.
    pub(super) fn evictions(&self) -> impl Iterator<Item = (MemberKey, Reason)> {
        self.evictions.iter().rev().copied()
    }

    /// Why a process is no longer a member, if it was one or a later process has its id.
    pub(super) fn evicted(&self, member: MemberKey) -> Option<Reason> {
        if self
            .members
            .get(&member.id)
            .is_some_and(|it| it.incarnation > member.incarnation)
        {
            let (newest, reason) = self.evicted.get(&member.id).copied().unzip();
            return Some(
                reason
                    .filter(|_| newest == Some(member.incarnation))
                    .unwrap_or(Reason::Replaced),
            );
        }
        let (incarnation, reason) = *self.evicted.get(&member.id)?;
        if incarnation > member.incarnation {
            return Some(Reason::Replaced);
        }
        (incarnation == member.incarnation).then_some(reason)
    }
}
