//! Process groups whose members agree through this server (docs/spec/wire-extensions.md, section 9.13), with the polls that
//! wait, the connections that speak for members, and the timers. What a group decides is in `c10d-membership`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hasher;
use std::sync::Arc;

use c10d_membership::{Attempt, EventNumber, Group, GroupState, MemberKey, Nonce};
use siphasher::sip::SipHasher13;

use super::conn_hash::ConnHash;
use super::lent::Lent;
use super::recorder::Mark;
use super::sent_lists::SentLists;
use crate::message::ConnId;
use crate::moment::Moment;
use crate::wire::Opening;

/// About the memory of a group without members.
pub(super) const GROUP_BYTES: usize = 1024;

/// The most connections that are known to have spoken for a member; of more, those that did last.
const SPEAKERS_MAX: usize = 16;

/// A member, and the name of its group.
type NamedMember = (Arc<[u8]>, MemberKey);

/// A poll that waits.
#[derive(Debug, Clone)]
pub(super) struct Polling {
    pub(super) name: Arc<[u8]>,
    pub(super) member: MemberKey,
    pub(super) after: EventNumber,
    pub(super) known: Option<Attempt>,
}

#[derive(Debug)]
pub(super) struct CarriedGroup {
    pub(super) group: Group,
    pub(super) opening: Opening,
    /// Groups that were opened before have smaller numbers.
    pub(super) number: u64,
    /// The connections whose polls wait.
    pub(super) polls: BTreeMap<MemberKey, ConnId>,
    /// The connections that have spoken for a member, the last ones last.
    pub(super) speakers: BTreeMap<MemberKey, Vec<ConnId>>,
    pub(super) lists: SentLists,
    /// Waits on keys of attempts up to this one fail.
    pub(super) released: Option<Attempt>,
    /// Of its last effect in the journal.
    pub(super) changed: Mark,
    pub(super) timer: Option<Moment>,
    pub(super) memory_bytes: usize,
}

/// All groups of a store.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) by_name: BTreeMap<Arc<[u8]>, CarriedGroup>,
    /// For whom a connection has spoken.
    pub(super) spoken: HashMap<ConnId, BTreeSet<NamedMember>, ConnHash>,
    pub(super) timers: BTreeSet<(Moment, Arc<[u8]>)>,
    /// How many were opened.
    opened: u64,
    pub(super) seed: u64,
    memory_bytes: usize,
}

impl Groups {
    pub(super) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// The poll of a connection does not wait any more.
    pub(super) fn poll_ended(&mut self, polling: &Polling) {
        if let Some(carried) = self.by_name.get_mut(&polling.name) {
            carried.polls.remove(&polling.member);
        }
    }

    /// Whether a wait on this key would wait for members that have given up.
    pub(super) fn is_released(&self, key: &[u8]) -> bool {
        self.by_name.values().any(|carried| {
            let rest = key.strip_prefix(&*carried.opening.key_prefix);
            carried.released.is_some_and(|released| {
                let attempt = rest.and_then(attempt_of_key);
                attempt.is_some_and(|attempt| attempt.is_over_with(released))
            })
        })
    }

    /// Takes note of a group's timer and memory.
    pub(super) fn update(&mut self, name: &Arc<[u8]>) {
        let Some(carried) = self.by_name.get_mut(name) else {
            return;
        };
        let timer = carried.group.wake_at().map(Moment::from);
        let before = std::mem::replace(&mut carried.timer, timer);
        if before != timer {
            if let Some(before) = before {
                self.timers.remove(&(before, Arc::clone(name)));
            }
            if let Some(timer) = timer {
                self.timers.insert((timer, Arc::clone(name)));
            }
        }
        let memory = GROUP_BYTES + carried.group.memory_bytes() + carried.lists.memory_bytes();
        self.memory_bytes += memory;
        self.memory_bytes -= std::mem::replace(&mut carried.memory_bytes, memory);
    }

    pub(super) fn insert(&mut self, name: Arc<[u8]>, opening: Opening, group: Group) {
        self.opened += 1;
        let carried = CarriedGroup {
            group,
            opening,
            number: self.opened,
            polls: BTreeMap::new(),
            speakers: BTreeMap::new(),
            lists: SentLists::default(),
            released: None,
            changed: Mark::default(),
            timer: None,
            memory_bytes: 0,
        };
        self.by_name.insert(Arc::clone(&name), carried);
        self.update(&name);
    }

    pub(super) fn remove(&mut self, name: &Arc<[u8]>, lent: &mut Lent) {
        let Some(carried) = self.by_name.remove(name) else {
            return;
        };
        carried.lists.lend(lent);
        self.memory_bytes -= carried.memory_bytes;
        if let Some(timer) = carried.timer {
            self.timers.remove(&(timer, Arc::clone(name)));
        }
        for (member, speakers) in carried.speakers {
            for conn in speakers {
                self.forget_speaker(conn, name, member);
            }
        }
    }

    /// The oldest group that serves nobody: it has ended, or no member has come.
    pub(super) fn oldest_unused(&self) -> Option<Arc<[u8]>> {
        let is_unused = |carried: &CarriedGroup| {
            carried.polls.is_empty()
                && matches!(
                    carried.group.state(),
                    GroupState::Ended(_) | GroupState::Forming { deadline: None, .. }
                )
        };
        let unused = self.by_name.iter().filter(|(_, it)| is_unused(it));
        let oldest = unused.min_by_key(|(_, carried)| carried.number);
        oldest.map(|(name, _)| Arc::clone(name))
    }

    /// A connection has spoken for a member.
    pub(super) fn spoke(&mut self, conn: ConnId, name: &Arc<[u8]>, member: MemberKey) {
        let Some(carried) = self.by_name.get_mut(name) else {
            return;
        };
        if !carried.group.has_member(member) {
            return;
        }
        let speakers = carried.speakers.entry(member).or_default();
        if speakers.last() == Some(&conn) {
            return;
        }
        speakers.retain(|it| *it != conn);
        speakers.push(conn);
        let dropped = (speakers.len() > SPEAKERS_MAX).then(|| speakers.remove(0));
        let spoken = self.spoken.entry(conn).or_default();
        spoken.insert((Arc::clone(name), member));
        if let Some(dropped) = dropped {
            self.forget_speaker(dropped, name, member);
        }
    }

    fn forget_speaker(&mut self, conn: ConnId, name: &Arc<[u8]>, member: MemberKey) {
        if let Some(spoken) = self.spoken.get_mut(&conn) {
            spoken.remove(&(Arc::clone(name), member));
            if spoken.is_empty() {
                self.spoken.remove(&conn);
            }
        }
    }

    /// A process is no member any more. Returns the connection whose poll waits.
    pub(super) fn forget_member(&mut self, name: &Arc<[u8]>, member: MemberKey) -> Option<ConnId> {
        let carried = self.by_name.get_mut(name)?;
        let speakers = carried.speakers.remove(&member).unwrap_or_default();
        let poll = carried.polls.get(&member).copied();
        for conn in speakers {
            self.forget_speaker(conn, name, member);
        }
        poll
    }

    /// A connection has ended. Returns the members for whom no other one has spoken.
    pub(super) fn unspoken(&mut self, conn: ConnId) -> Vec<NamedMember> {
        let spoken = self.spoken.remove(&conn).unwrap_or_default();
        let is_alone = |(name, member): &NamedMember| {
            let Some(carried) = self.by_name.get_mut(name) else {
                return false;
            };
            let Some(speakers) = carried.speakers.get_mut(member) else {
                return false;
            };
            speakers.retain(|it| *it != conn);
            let is_alone = speakers.is_empty();
            if is_alone {
                carried.speakers.remove(member);
            }
            is_alone
        };
        spoken.into_iter().filter(is_alone).collect()
    }

    pub(super) fn new_nonce(&self) -> Nonce {
        let mut hasher = SipHasher13::new_with_keys(self.seed, self.opened);
        hasher.write(b"membership");
        Nonce::new(hasher.finish() as u32)
    }

    /// Panics if an invariant is violated, which is a bug in this module.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        let mut timers = 0;
        let mut memory = 0;
        let mut speakers = 0;
        for (name, carried) in &self.by_name {
            timers += usize::from(carried.timer.is_some());
            memory += carried.memory_bytes;
            assert_eq!(carried.timer, carried.group.wake_at().map(Moment::from));
            for (member, of_member) in &carried.speakers {
                assert!(
                    carried.group.has_member(*member),
                    "only members are spoken for"
                );
                for conn in of_member {
                    let spoken = &self.spoken[conn];
                    assert!(spoken.contains(&(Arc::clone(name), *member)));
                    speakers += 1;
                }
            }
        }
        assert_eq!(timers, self.timers.len(), "no timer is of no group");
        assert_eq!(memory, self.memory_bytes, "the memory is counted");
        let spoken: usize = self.spoken.values().map(BTreeSet::len).sum();
        assert_eq!(spoken, speakers, "who is spoken for knows it");
    }
}

/// The attempt of one of torch's keys, after the prefix of the group's.
fn attempt_of_key(rest: &[u8]) -> Option<Attempt> {
    let length = rest.iter().position(|byte| *byte == b'/')?;
    let uuid = std::str::from_utf8(&rest[..length]).ok()?;
    Attempt::from_uuid(uuid.parse().ok()?)
}
