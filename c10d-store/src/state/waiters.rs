//! The pending waits for each name, in order of arrival.
//!
//! A pending wait has one entry for each missing name. An entry is in two doubly linked lists, one for its name and
//! one for its wait. So a wakeup costs as much as the waits that it reaches, and a cancel as much as the entries of
//! its wait. (PyTorch's server scans all waits for both.)
//!
//! A connection can be *away*: its session has no link, so that replies do not arrive now. Its entries are behind the
//! entries of all other connections in each list, and take no element.
//!
//! Has no values and queues: the caller compares known values.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use slab::Slab;

use super::extensions::{KnownValue, WantedKeys};
use super::hashing::ConnHash;
use crate::message::ConnId;
use crate::moment::Moment;
use crate::wire::Opcode;

/// The event that satisfies an entry.
#[derive(Debug)]
pub(super) enum Wants {
    /// A value, or an element of a queue: WAIT.
    ValueOrElement,
    /// An unfinished BARRIER. It is satisfied like a missing name, although the name may already exist.
    Barrier,
    /// A value: WAIT_GET.
    Value,
    /// A value that differs from the known one: WAIT_CHANGE.
    Change(Arc<KnownValue>),
    /// An element of a queue: QUEUE_TAKE.
    Element,
    /// News of the group with this name: MEMBERSHIP_POLL.
    Event,
}

impl Wants {
    const fn takes_element(&self) -> bool {
        matches!(self, Self::ValueOrElement | Self::Barrier | Self::Element)
    }

    const fn takes_value(&self) -> bool {
        !matches!(self, Self::Element | Self::Event)
    }
}

/// The reply once no name is missing.
#[derive(Debug)]
pub(super) enum Answer {
    Stop,
    /// The values of these keys, which all exist at the same moment.
    Values(WantedKeys),
    /// The entry takes at most this many elements of the queue.
    Elements(usize),
    /// The answer of a group to a poll.
    Event,
}

impl Answer {
    /// The bytes of the keys that it keeps.
    fn bytes(&self) -> usize {
        match self {
            Self::Values(wanted) => wanted.bytes(),
            Self::Stop | Self::Elements(_) | Self::Event => 0,
        }
    }
}

/// The request that opened a wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    /// WAIT, BARRIER, WAIT_GET, WAIT_CHANGE, QUEUE_TAKE or MEMBERSHIP_POLL.
    pub(super) command: Opcode,
    /// The time when the wait arrived.
    pub(super) since: Moment,
}

/// A completed wait.
#[derive(Debug)]
pub(super) struct Woken {
    pub(super) conn: ConnId,
    pub(super) answer: Answer,
    pub(super) origin: Origin,
}

/// A pending wait, for a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) origin: Origin,
    /// The number of missing names.
    pub(super) missing: u32,
    first: u32,
}

/// The waiters of one name. One more than the list's place, so that a slot without waiters is no larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListId(NonZeroU32);

impl ListId {
    fn at(place: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index(place)))
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    entries: Slab<Entry>,
    lists: Slab<List>,
    waits: HashMap<ConnId, Wait, ConnHash>,
    /// The connections that are away, each with the time when it lost its link.
    away: HashMap<ConnId, Moment, ConnHash>,
    /// The bytes of the names of all lists.
    name_bytes: usize,
    /// The bytes of known values, and of the keys that answers keep.
    kept_bytes: usize,
    /// Entries visited so far by wakeups and cancels.
    visits: u64,
    /// The memory of at least [`RELEASED_ENTRIES_MIN`] has been freed.
    has_released: bool,
}

#[derive(Debug)]
struct List {
    name: Arc<[u8]>,
    first: u32,
    last: u32,
    /// The first entry of a connection that is away; all entries from here on are.
    first_away: u32,
    /// The number of entries that a value, and that an element can satisfy; some count in both.
    for_value: u32,
    for_element: u32,
}

#[derive(Debug)]
struct Wait {
    /// The number of entries of this wait. Invariant: the length of its list, at least 1.
    missing: u32,
    first: u32,
    last: u32,
    answer: Answer,
    origin: Origin,
}

#[derive(Debug)]
struct Entry {
    conn: ConnId,
    list: ListId,
    wants: Wants,
    next_in_list: u32,
    prev_in_list: u32,
    next_in_wait: u32,
    prev_in_wait: u32,
}

/// Entries whose memory is kept while there are no waits.
const KEPT_ENTRIES: usize = 1024;

/// Freed entries that are worth a release of memory to the system: about 0.5 MB with their waits.
const RELEASED_ENTRIES_MIN: usize = 4096;

/// The end of a linked list.
const NONE: u32 = u32::MAX;

impl Waiters {
    /// Whether this connection has a pending wait.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn is_waiting(&self, conn: ConnId) -> bool {
        self.waits.contains_key(&conn)
    }

    /// The bytes of the names that are waited for.
    pub(super) const fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    /// The bytes of known values, and of the keys whose values are wanted.
    pub(super) const fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Makes a known value, for entries that are added at once.
    pub(super) fn know(&mut self, known: KnownValue) -> Arc<KnownValue> {
        self.kept_bytes += known.as_known().bytes().len();
        Arc::new(known)
    }

    /// Whether much memory was freed since the last call.
    pub(super) const fn take_released(&mut self) -> bool {
        std::mem::replace(&mut self.has_released, false)
    }

    /// The number of entries of all waits.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of entries that there is memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// The number of waiting connections.
    pub(super) fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// The pending wait of a connection.
    pub(super) fn waiting_of(&self, conn: ConnId) -> Option<Waiting> {
        let wait = self.waits.get(&conn)?;
        Some(Waiting {
            origin: wait.origin,
            missing: wait.missing,
            first: wait.first,
        })
    }

    /// The missing names of a wait, in the order of the request.
    pub(super) fn missing_of(&self, waiting: Waiting) -> impl Iterator<Item = &Arc<[u8]>> {
        let mut at = waiting.first;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.next_in_wait;
            Some(&self.lists[entry.list.place()].name)
        })
    }

    /// The connections that wait for a name, in order of arrival.
    pub(super) fn connections_of(&self, list: ListId) -> impl Iterator<Item = ConnId> {
        let mut at = self.lists[list.place()].first;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.next_in_list;
            Some(entry.conn)
        })
    }

    /// The name of a list.
    pub(super) fn name(&self, list: ListId) -> &[u8] {
        &self.lists[list.place()].name
    }

    /// The known value of the last entry in the list, if it waits for a change.
    pub(super) fn last_known(&self, list: ListId) -> Option<&Arc<KnownValue>> {
        let last = self.lists[list.place()].last;
        match &self.entries.get(last as usize)?.wants {
            Wants::Change(known) => Some(known),
            Wants::ValueOrElement
            | Wants::Barrier
            | Wants::Value
            | Wants::Element
            | Wants::Event => None,
        }
    }

    /// Makes a list for `name`, which has none. The caller must add an entry at once.
    pub(super) fn new_list(&mut self, name: Arc<[u8]>) -> ListId {
        self.name_bytes += name.len();
        ListId::at(self.lists.insert(List {
            name,
            first: NONE,
            last: NONE,
            first_away: NONE,
            for_value: 0,
            for_element: 0,
        }))
    }

    /// Opens a wait for a connection that has none. The caller must add an entry at once.
    pub(super) fn open(&mut self, conn: ConnId, answer: Answer, origin: Origin) {
        self.kept_bytes += answer.bytes();
        let wait = Wait {
            missing: 0,
            first: NONE,
            last: NONE,
            answer,
            origin,
        };
        let replaced = self.waits.insert(conn, wait);
        debug_assert!(replaced.is_none(), "{conn:?} was waiting already");
    }

    /// Adds a missing name to the open wait of `conn`, unless the wait already has it. In the meantime, no other wait
    /// may have been extended.
    pub(super) fn miss(&mut self, conn: ConnId, list: ListId, wants: Wants) {
        let is_away = self.is_away(conn);
        let last = self.last_entry(list, is_away);
        if last.is_some_and(|last| last.conn == conn) {
            return;
        }
        let wait = self.waits.get_mut(&conn).expect("the wait is open");
        let entry = index(self.entries.insert(Entry {
            conn,
            list,
            wants,
            next_in_list: NONE,
            prev_in_list: NONE,
            next_in_wait: NONE,
            prev_in_wait: wait.last,
        }));
        match wait.last {
            NONE => wait.first = entry,
            last => self.entries[last as usize].next_in_wait = entry,
        }
        wait.last = entry;
        wait.missing += 1;
        self.link_into_list(entry, list, is_away);
    }

    /// The last entry of those that are away, or of those that are not.
    fn last_entry(&self, list: ListId, is_away: bool) -> Option<&Entry> {
        let list = &self.lists[list.place()];
        let last = match self.entries.get(list.first_away as usize) {
            Some(first_away) if !is_away => first_away.prev_in_list,
            _ => list.last,
        };
        self.entries.get(last as usize)
    }

    /// Since when a connection has been away; `None` if it is not.
    pub(super) fn away_since(&self, conn: ConnId) -> Option<Moment> {
        self.away.get(&conn).copied()
    }

    /// A connection is away since this moment, or is not any more. Its entries leave their places for the ends of their
    /// lists. Returns whether that is new.
    pub(super) fn set_away(&mut self, conn: ConnId, since: Option<Moment>) -> bool {
        match since {
            Some(_) if self.is_away(conn) => return false,
            Some(since) => _ = self.away.insert(conn, since),
            None if self.away.remove(&conn).is_none() => return false,
            None => {}
        }
        let mut at = self.waits.get(&conn).map_or(NONE, |wait| wait.first);
        while at != NONE {
            let entry = &self.entries[at as usize];
            let (list, next) = (entry.list, entry.next_in_wait);
            self.unlink_from_list(at);
            self.link_into_list(at, list, since.is_some());
            at = next;
        }
        true
    }

    /// The entries of a connection that accept an element, each with its name.
    pub(super) fn element_entries(&self, conn: ConnId) -> impl Iterator<Item = (u32, &Arc<[u8]>)> {
        let mut at = self.waits.get(&conn).map_or(NONE, |wait| wait.first);
        let entries = std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            let this = std::mem::replace(&mut at, entry.next_in_wait);
            Some((this, entry))
        });
        entries
            .filter(|(_, entry)| entry.wants.takes_element())
            .map(|(at, entry)| (at, &self.lists[entry.list.place()].name))
    }

    /// Removes one entry, and appends its wait to `woken` if that is complete. Returns the name if its list became empty
    /// and was removed.
    pub(super) fn element_given(&mut self, at: u32, woken: &mut Vec<Woken>) -> Option<Arc<[u8]>> {
        let list = self.entries[at as usize].list;
        self.count_down(at, woken);
        self.drop_if_empty(list)
    }

    fn is_away(&self, conn: ConnId) -> bool {
        !self.away.is_empty() && self.away.contains_key(&conn)
    }

    /// A value was written: removes the entries of the list, except those that wait for an element, or for a
    /// change and whose known value does not differ. Appends completed waits to `woken`, in order of arrival. Returns the
    /// name if the list became empty and was removed.
    pub(super) fn value_written(
        &mut self,
        list: ListId,
        mut differs: impl FnMut(&Arc<KnownValue>) -> bool,
        woken: &mut Vec<Woken>,
    ) -> Option<Arc<[u8]>> {
        let mut at = self.lists[list.place()].first;
        while at != NONE && self.lists[list.place()].for_value > 0 {
            self.visits += 1;
            let entry = &self.entries[at as usize];
            let next = entry.next_in_list;
            let is_settled = match &entry.wants {
                Wants::ValueOrElement | Wants::Barrier | Wants::Value => true,
                Wants::Change(known) => differs(known),
                Wants::Element | Wants::Event => false,
            };
            if is_settled {
                self.count_down(at, woken);
            }
            at = next;
        }
        self.drop_if_empty(list)
    }

    /// An element was pushed: removes entries that accept an element, in order of arrival, until one wait is
    /// complete, and appends that to `woken`. Skips the entries of connections that are away. Returns the name if the
    /// list became empty and was removed.
    pub(super) fn element_pushed(
        &mut self,
        list: ListId,
        woken: &mut Vec<Woken>,
    ) -> Option<Arc<[u8]>> {
        let before = woken.len();
        let List {
            first, first_away, ..
        } = self.lists[list.place()];
        let mut at = first;
        while at != first_away && woken.len() == before && self.lists[list.place()].for_element > 0
        {
            self.visits += 1;
            let entry = &self.entries[at as usize];
            let next = entry.next_in_list;
            if entry.wants.takes_element() {
                self.count_down(at, woken);
            }
            at = next;
        }
        self.drop_if_empty(list)
    }

    /// The connections that wait for names with this prefix, each once, in the order of their numbers.
    pub(super) fn waiting_for_prefix(&mut self, prefix: &[u8]) -> Vec<ConnId> {
        self.visits += self.lists.len() as u64;
        let lists = self.lists.iter();
        let lists = lists.filter(|(_, list)| list.name.starts_with(prefix));
        let conns = lists.flat_map(|(id, _)| self.connections_of(ListId::at(id)));
        let mut conns: Vec<ConnId> = conns.collect();
        conns.sort_unstable();
        conns.dedup();
        conns
    }

    /// Removes the wait of a connection; `None` if it has none. Appends the names whose lists became empty
    /// and were removed to `emptied`. Costs the entries of this wait only.
    pub(super) fn cancel(&mut self, conn: ConnId, emptied: &mut Vec<Arc<[u8]>>) -> Option<Answer> {
        let wait = self.waits.remove(&conn)?;
        self.kept_bytes -= wait.answer.bytes();
        let mut at = wait.first;
        while at != NONE {
            self.visits += 1;
            self.unlink_from_list(at);
            let entry = self.remove_entry(at);
            emptied.extend(self.drop_if_empty(entry.list));
            at = entry.next_in_wait;
        }
        Some(wait.answer)
    }

    fn count_down(&mut self, at: u32, woken: &mut Vec<Woken>) {
        self.unlink_from_list(at);
        let entry = self.remove_entry(at);
        let wait = self.waits.get_mut(&entry.conn).expect("an entry's wait");
        wait.missing -= 1;
        if wait.missing == 0 {
            let wait = self.waits.remove(&entry.conn).expect("found above");
            self.kept_bytes -= wait.answer.bytes();
            woken.push(Woken {
                conn: entry.conn,
                answer: wait.answer,
                origin: wait.origin,
            });
            return;
        }
        match entry.prev_in_wait {
            NONE => wait.first = entry.next_in_wait,
            prev => self.entries[prev as usize].next_in_wait = entry.next_in_wait,
        }
        match entry.next_in_wait {
            NONE => wait.last = entry.prev_in_wait,
            next => self.entries[next as usize].prev_in_wait = entry.prev_in_wait,
        }
    }

    /// Entries visited so far by wakeups and cancels.
    pub(super) const fn visits(&self) -> u64 {
        self.visits
    }

    /// Makes an entry, which is in no list, the last one of those that are away, or of those that are not.
    fn link_into_list(&mut self, at: u32, list: ListId, is_away: bool) {
        let list = &mut self.lists[list.place()];
        let next = if is_away { NONE } else { list.first_away };
        if is_away && list.first_away == NONE {
            list.first_away = at;
        }
        let prev = match next {
            NONE => std::mem::replace(&mut list.last, at),
            next => std::mem::replace(&mut self.entries[next as usize].prev_in_list, at),
        };
        match prev {
            NONE => list.first = at,
            prev => self.entries[prev as usize].next_in_list = at,
        }
        let entry = &mut self.entries[at as usize];
        entry.prev_in_list = prev;
        entry.next_in_list = next;
        list.for_value += u32::from(entry.wants.takes_value());
        list.for_element += u32::from(entry.wants.takes_element());
    }

    /// Removes an entry that is in no list.
    fn remove_entry(&mut self, at: u32) -> Entry {
        let entry = self.entries.remove(at as usize);
        if let Wants::Change(known) = &entry.wants
            && Arc::strong_count(known) == 1
        {
            self.kept_bytes -= known.as_known().bytes().len();
        }
        entry
    }

    fn unlink_from_list(&mut self, at: u32) {
        let entry = &self.entries[at as usize];
        let (prev, next) = (entry.prev_in_list, entry.next_in_list);
        let list = &mut self.lists[entry.list.place()];
        list.for_value -= u32::from(entry.wants.takes_value());
        list.for_element -= u32::from(entry.wants.takes_element());
        if list.first_away == at {
            list.first_away = next;
        }
        match prev {
            NONE => list.first = next,
            prev => self.entries[prev as usize].next_in_list = next,
        }
        match next {
            NONE => list.last = prev,
            next => self.entries[next as usize].prev_in_list = prev,
        }
    }

    fn drop_if_empty(&mut self, list: ListId) -> Option<Arc<[u8]>> {
        if self.lists[list.place()].first != NONE {
            return None;
        }
        let name = self.lists.remove(list.place()).name;
        self.name_bytes -= name.len();
        if self.lists.is_empty() && self.entries.capacity() > KEPT_ENTRIES {
            self.has_released |= self.entries.capacity() >= RELEASED_ENTRIES_MIN;
            self.entries = Slab::new();
            self.lists = Slab::new();
            self.waits.shrink_to(KEPT_ENTRIES);
        }
        Some(name)
    }

    /// Checks the invariants of this module. Calls `wanted` for each list with its name and the events that its
    /// entries wait for, except entries that are away.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self, mut wanted: impl FnMut(ListId, &[u8], &[&Wants])) {
        let mut entries_in_lists = 0;
        for (id, list) in &self.lists {
            let mut wants = Vec::new();
            let mut away = 0;
            let (mut for_value, mut for_element) = (0, 0);
            let (mut at, mut prev) = (list.first, NONE);
            while at != NONE {
                let entry = &self.entries[at as usize];
                assert_eq!(entry.prev_in_list, prev, "a name's list is consistent");
                assert_eq!(entry.list.place(), id, "an entry knows its list");
                assert_eq!(
                    at == list.first_away || away > 0,
                    self.is_away(entry.conn),
                    "the entries that are away are the last ones"
                );
                for_value += u32::from(entry.wants.takes_value());
                for_element += u32::from(entry.wants.takes_element());
                if self.is_away(entry.conn) {
                    away += 1;
                } else {
                    wants.push(&entry.wants);
                }
                (prev, at) = (at, entry.next_in_list);
            }
            assert_eq!(list.last, prev, "a list knows its last entry");
            assert_eq!(
                (list.for_value, list.for_element),
                (for_value, for_element),
                "a list counts what its entries want"
            );
            assert!(wants.len() + away > 0, "no list is empty");
            entries_in_lists += wants.len() + away;
            wanted(ListId::at(id), &list.name, &wants);
        }
        let mut entries_in_waits = 0;
        for (conn, wait) in &self.waits {
            let (mut at, mut prev, mut missing) = (wait.first, NONE, 0);
            while at != NONE {
                let entry = &self.entries[at as usize];
                assert_eq!(entry.prev_in_wait, prev, "a wait's list is consistent");
                assert_eq!(entry.conn, *conn, "an entry knows its connection");
                missing += 1;
                (prev, at) = (at, entry.next_in_wait);
            }
            assert_eq!(wait.last, prev, "a wait knows its last entry");
            assert_eq!(wait.missing, missing, "a wait counts its entries");
            assert!(missing > 0, "a wait without missing names is complete");
            entries_in_waits += missing as usize;
        }
        let answers = self.waits.values().map(|wait| wait.answer.bytes());
        let known = self
            .entries
            .iter()
            .filter_map(|(_, entry)| match &entry.wants {
                Wants::Change(known) => Some((Arc::as_ptr(known), known.as_known().bytes().len())),
                _ => None,
            });
        let known: HashMap<_, _> = known.collect();
        let kept = answers.sum::<usize>() + known.values().sum::<usize>();
        assert_eq!(self.kept_bytes, kept, "what waits keep is counted");
        assert_eq!(entries_in_lists, self.entries.len(), "no entry is lost");
        assert_eq!(entries_in_waits, self.entries.len(), "no entry is lost");
    }
}

/// Slab keys are dense, so a `u32` overflows only with 2^32 entries: 192 GiB of them.
fn index(key: usize) -> u32 {
    u32::try_from(key).expect("fewer than 2^32 entries")
}
