//! The open groups of a server, with the waiting polls, the connections of members, the timers, and the lists that were
//! sent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use c10d_store::groups::{ConnId, GroupEffect, Value};
use siphasher::sip::SipHasher13;

use crate::group::{Group, GroupState};
use crate::list_change::encode_list;
use crate::message::EventNumber;
use crate::record::{Attempt, MemberKey, Nonce, Record};
use crate::request::Opening;

/// About the memory of a group without members.
pub(super) const GROUP_BYTES: usize = 1024;

/// About the memory of a seat in a list besides its handle.
const SEAT_BYTES: usize = 96;

/// The most connections that are known to have spoken for a member; of more, those that did last.
const SPEAKERS_MAX: usize = 16;

/// A member, and the name of its group.
type NamedMember = (Arc<[u8]>, MemberKey);

/// A waiting poll.
#[derive(Debug, Clone)]
pub(super) struct Polling {
    pub(super) name: Arc<[u8]>,
    pub(super) member: MemberKey,
    pub(super) after: EventNumber,
    pub(super) known: Option<Attempt>,
}

#[derive(Debug)]
pub(super) struct OpenGroup {
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
    pub(super) timer: Option<Duration>,
    pub(super) memory_bytes: usize,
}

/// All groups of a server.
#[derive(Debug, Default)]
pub(super) struct OpenGroups {
    pub(super) by_name: BTreeMap<Arc<[u8]>, OpenGroup>,
    /// The polls that wait.
    pub(super) polls: HashMap<ConnId, Polling>,
    /// The members for which a connection has spoken.
    pub(super) spoken: HashMap<ConnId, BTreeSet<NamedMember>>,
    pub(super) timers: BTreeSet<(Duration, Arc<[u8]>)>,
    /// How many were opened.
    opened: u64,
    seed: u64,
    memory_bytes: usize,
}

impl OpenGroups {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    pub(super) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// The poll of a connection waits from now on. Returns the connection whose poll of the same member has waited so far.
    pub(super) fn poll_waits(&mut self, conn: ConnId, polling: Polling) -> Option<ConnId> {
        let open = self.by_name.get_mut(&polling.name)?;
        let earlier = open.polls.insert(polling.member, conn);
        self.polls.insert(conn, polling);
        earlier
    }

    /// The poll of a connection does not wait any more.
    pub(super) fn poll_ended(&mut self, conn: ConnId) {
        if let Some(polling) = self.polls.remove(&conn)
            && let Some(open) = self.by_name.get_mut(&polling.name)
            && open.polls.get(&polling.member) == Some(&conn)
        {
            open.polls.remove(&polling.member);
        }
    }

    /// Whether a wait for this key would wait for members that have given up.
    pub(super) fn is_released(&self, key: &[u8]) -> bool {
        self.by_name.values().any(|open| {
            let rest = key.strip_prefix(&*open.opening.key_prefix);
            open.released.is_some_and(|released| {
                let attempt = rest.and_then(attempt_of_key);
                attempt.is_some_and(|attempt| attempt.is_over_with(released))
            })
        })
    }

    /// Takes note of a group's timer and memory.
    pub(super) fn update(&mut self, name: &Arc<[u8]>) {
        let Some(open) = self.by_name.get_mut(name) else {
            return;
        };
        let timer = open.group.wake_at();
        let before = std::mem::replace(&mut open.timer, timer);
        if before != timer {
            if let Some(before) = before {
                self.timers.remove(&(before, Arc::clone(name)));
            }
            if let Some(timer) = timer {
                self.timers.insert((timer, Arc::clone(name)));
            }
        }
        let memory = GROUP_BYTES + open.group.memory_bytes() + open.lists.memory_bytes();
        self.memory_bytes += memory;
        self.memory_bytes -= std::mem::replace(&mut open.memory_bytes, memory);
    }

    pub(super) fn insert(&mut self, name: Arc<[u8]>, opening: Opening, group: Group) {
        self.opened += 1;
        let open = OpenGroup {
            group,
            opening,
            number: self.opened,
            polls: BTreeMap::new(),
            speakers: BTreeMap::new(),
            lists: SentLists::default(),
            released: None,
            timer: None,
            memory_bytes: 0,
        };
        self.by_name.insert(Arc::clone(&name), open);
        self.update(&name);
    }

    pub(super) fn remove(&mut self, name: &Arc<[u8]>, effects: &mut Vec<GroupEffect>) {
        let Some(mut open) = self.by_name.remove(name) else {
            return;
        };
        open.lists.lend(effects);
        self.memory_bytes -= open.memory_bytes;
        if let Some(timer) = open.timer {
            self.timers.remove(&(timer, Arc::clone(name)));
        }
        for (member, speakers) in open.speakers {
            for conn in speakers {
                self.forget_speaker(conn, name, member);
            }
        }
        for conn in open.polls.values() {
            self.polls.remove(conn);
        }
    }

    /// The oldest unused group: it has ended, or none of its members has arrived.
    pub(super) fn oldest_unused(&self) -> Option<Arc<[u8]>> {
        let is_unused = |open: &OpenGroup| {
            open.polls.is_empty()
                && matches!(
                    open.group.state(),
                    GroupState::Ended(_) | GroupState::Forming { deadline: None, .. }
                )
        };
        let unused = self.by_name.iter().filter(|(_, it)| is_unused(it));
        let oldest = unused.min_by_key(|(_, open)| open.number);
        oldest.map(|(name, _)| Arc::clone(name))
    }

    /// A connection has spoken for a member.
    pub(super) fn spoke(&mut self, conn: ConnId, name: &Arc<[u8]>, member: MemberKey) {
        let Some(open) = self.by_name.get_mut(name) else {
            return;
        };
        if !open.group.has_member(member) {
            return;
        }
        let speakers = open.speakers.entry(member).or_default();
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

    /// Drops a process that is no longer a member. Returns the connection whose poll waits.
    pub(super) fn forget_member(&mut self, name: &Arc<[u8]>, member: MemberKey) -> Option<ConnId> {
        let open = self.by_name.get_mut(name)?;
        let speakers = open.speakers.remove(&member).unwrap_or_default();
        let poll = open.polls.get(&member).copied();
        for conn in speakers {
            self.forget_speaker(conn, name, member);
        }
        poll
    }

    /// A connection has ended. Returns the members for whom no other one has spoken.
    pub(super) fn unspoken(&mut self, conn: ConnId) -> Vec<NamedMember> {
        let spoken = self.spoken.remove(&conn).unwrap_or_default();
        let is_alone = |(name, member): &NamedMember| {
            let Some(open) = self.by_name.get_mut(name) else {
                return false;
            };
            let Some(speakers) = open.speakers.get_mut(member) else {
                return false;
            };
            speakers.retain(|it| *it != conn);
            let is_alone = speakers.is_empty();
            if is_alone {
                open.speakers.remove(member);
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
        let mut polls = 0;
        for (name, open) in &self.by_name {
            timers += usize::from(open.timer.is_some());
            memory += open.memory_bytes;
            polls += open.polls.len();
            for (member, conn) in &open.polls {
                let polling = &self.polls[conn];
                assert_eq!((&polling.name, &polling.member), (name, member));
                assert!(open.group.has_member(*member), "only members poll");
            }
            assert_eq!(open.timer, open.group.wake_at());
            for (member, of_member) in &open.speakers {
                assert!(
                    open.group.has_member(*member),
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
        assert_eq!(polls, self.polls.len(), "no poll is of no group");
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

/// The newest list of a group, as bytes that all replies share (docs/spec/wire-extensions.md, MEMBERSHIP 4 and 12), and the
/// lists that most members have: the list of the generation, and the last list that was sent, whose attempt may have failed.
#[derive(Debug, Default)]
pub(super) struct SentLists {
    list: Option<Arc<Record>>,
    committed: Option<Arc<Record>>,
    last_sent: Option<Arc<Record>>,
    /// The list as it was sent: whole, or as what differs from one of the other lists.
    made: Vec<Made>,
    records_bytes: usize,
}

#[derive(Debug)]
struct Made {
    base: Option<Attempt>,
    bytes: Value,
}

impl SentLists {
    /// Sends this list from now on. Returns `false` if that list is sent already.
    pub(super) fn start(
        &mut self,
        list: &Arc<Record>,
        committed: Option<&Arc<Record>>,
        effects: &mut Vec<GroupEffect>,
    ) -> bool {
        let is_same = self
            .list
            .as_ref()
            .is_some_and(|it| it.attempt == list.attempt);
        if is_same {
            return false;
        }
        self.lend(effects);
        let other = |it: &Arc<Record>| it.attempt != list.attempt;
        let committed = committed.filter(|it| other(it)).cloned();
        let last_sent = self.list.take().filter(|last| {
            let is_committed = committed
                .as_ref()
                .is_some_and(|it| it.attempt == last.attempt);
            !is_committed
        });
        let records = [Some(list), committed.as_ref(), last_sent.as_ref()];
        let records_bytes = records.into_iter().flatten().map(|it| bytes_of(it)).sum();
        *self = Self {
            list: Some(Arc::clone(list)),
            committed,
            last_sent,
            records_bytes,
            ..Self::default()
        };
        true
    }

    /// Gives up the bytes of the lists. Replies may still hold them.
    pub(super) fn lend(&mut self, effects: &mut Vec<GroupEffect>) {
        let made = self.made.drain(..);
        effects.extend(made.map(|made| GroupEffect::Lent(made.bytes)));
    }

    /// The bytes for a client that has the list of attempt `known`, and whether they were made now.
    pub(super) fn bytes(&mut self, known: Option<Attempt>) -> Option<(Value, bool)> {
        let list = self.list.as_ref()?;
        let mut bases = [&self.committed, &self.last_sent].into_iter().flatten();
        let base = bases.find(|it| Some(it.attempt) == known);
        let attempt = base.map(|base| base.attempt);
        if let Some(made) = self.made.iter().find(|made| made.base == attempt) {
            return Some((made.bytes.clone(), false));
        }
        let mut bytes = Vec::new();
        encode_list(list, base.map(|it| &**it), &mut bytes);
        let bytes = Value::to_many(bytes);
        self.made.push(Made {
            base: attempt,
            bytes: bytes.clone(),
        });
        Some((bytes, true))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let made = self.made.iter().map(|made| made.bytes.as_bytes().len());
        self.records_bytes + made.sum::<usize>()
    }
}

fn bytes_of(list: &Record) -> usize {
    let handles = list.seats.iter().map(|seat| seat.handle.len());
    list.seats.len() * SEAT_BYTES + handles.sum::<usize>()
}
