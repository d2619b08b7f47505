//! Who waits for which names, in order of arrival.
//!
//! Every pending wait holds one entry for each name that it still misses. An entry stands in two
//! doubly linked chains, that of its name and that of its wait, so that a wake costs the waiters it
//! reaches and a cancel costs the entries of its own wait, however many others there are. (PyTorch's
//! server scans all waits of the server for both.)
//!
//! Knows nothing of values and queues: whether a value is what a waiter knows already, the caller says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;

use super::known_value::KnownValue;
use crate::message::ConnId;

/// What makes an entry count as there.
#[derive(Debug)]
pub(super) enum Wants {
    /// A value, or an element of a queue: WAIT.
    ValueOrElement,
    /// The same, though the name may well be there already: an unfinished BARRIER.
    Barrier,
    /// A value only: WAIT_GET.
    Value,
    /// A value that is not the known one: WAIT_CHANGE.
    Change(Arc<KnownValue>),
}

impl Wants {
    const fn takes_element(&self) -> bool {
        matches!(self, Self::ValueOrElement | Self::Barrier)
    }
}

/// What the peer is to be sent once nothing is missing any more.
#[derive(Debug)]
pub(super) enum Answer {
    Stop,
    /// The values of these keys, all present at the same moment.
    Values(Box<[Box<[u8]>]>),
}

/// A wait that is over.
#[derive(Debug)]
pub(super) struct Woken {
    pub(super) conn: ConnId,
    pub(super) answer: Answer,
}

/// The waiters of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListId(u32);

#[derive(Debug, Default)]
pub(super) struct Waiters {
    entries: Slab<Entry>,
    lists: Slab<List>,
    waits: HashMap<ConnId, Wait>,
    /// The present, as the server last said it.
    now: Option<Instant>,
    /// Entries taken off so far, for the test that a cancel costs its own only.
    #[cfg(test)]
    steps: u64,
}

#[derive(Debug)]
struct List {
    name: Box<[u8]>,
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Wait {
    /// Entries that this wait still has. Invariant: the length of its chain, at least 1.
    missing: u32,
    first: u32,
    answer: Answer,
    since: Option<Instant>,
}

/// Who waits for what, for a report.
#[derive(Debug)]
pub(crate) struct WaitSummary {
    /// How many connections wait.
    pub(crate) waiting: usize,
    /// The connection that has waited longest, and since when.
    pub(crate) oldest: Option<(ConnId, Instant)>,
    /// Some of the keys, each with the number of connections that wait for it.
    pub(crate) keys: Vec<(Vec<u8>, usize)>,
    /// How many keys are waited for besides.
    pub(crate) more_keys: usize,
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

/// The end of a chain.
const NONE: u32 = u32::MAX;

impl Waiters {
    /// Whether this connection has a pending wait.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn is_waiting(&self, conn: ConnId) -> bool {
        self.waits.contains_key(&conn)
    }

    /// How many entries there are, of all waits.
    #[cfg(debug_assertions)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Later waits begin at this time.
    pub(super) const fn set_now(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// How many connections wait.
    pub(super) fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// Who waits for what, with the names of at most `keys_max` keys. Costs a look at each wait, and at
    /// the waiters of the keys named.
    pub(super) fn summary(&self, keys_max: usize) -> WaitSummary {
        let started = |(conn, wait): (&ConnId, &Wait)| wait.since.map(|since| (since, *conn));
        let oldest = self.waits.iter().filter_map(started).min();
        let keys = self.lists.iter().take(keys_max);
        WaitSummary {
            waiting: self.waits.len(),
            oldest: oldest.map(|(since, conn)| (conn, since)),
            keys: keys
                .map(|(_, list)| (list.name.to_vec(), self.length(list)))
                .collect(),
            more_keys: self.lists.len().saturating_sub(keys_max),
        }
    }

    fn length(&self, list: &List) -> usize {
        let mut length = 0;
        let mut at = list.first;
        while at != NONE {
            length += 1;
            at = self.entries[at as usize].next_in_list;
        }
        length
    }

    /// The name for which these wait.
    pub(super) fn name(&self, list: ListId) -> &[u8] {
        &self.lists[list.0 as usize].name
    }

    /// What the last one in the list knows, if it waits for a change.
    pub(super) fn last_known(&self, list: ListId) -> Option<&Arc<KnownValue>> {
        let last = self.lists[list.0 as usize].last;
        match &self.entries.get(last as usize)?.wants {
            Wants::Change(known) => Some(known),
            Wants::ValueOrElement | Wants::Barrier | Wants::Value => None,
        }
    }

    /// Makes a list for `name`, which has none. It must get an entry before anything else happens.
    pub(super) fn new_list(&mut self, name: &[u8]) -> ListId {
        ListId(index(self.lists.insert(List {
            name: name.into(),
            first: NONE,
            last: NONE,
        })))
    }

    /// Opens a wait for a connection that has none. It must get an entry before anything else
    /// happens.
    pub(super) fn open(&mut self, conn: ConnId, answer: Answer) {
        let wait = Wait {
            missing: 0,
            first: NONE,
            answer,
            since: self.now,
        };
        let replaced = self.waits.insert(conn, wait);
        debug_assert!(replaced.is_none(), "{conn:?} was waiting already");
    }

    /// Lets the open wait of `conn` miss one more name.
    pub(super) fn miss(&mut self, conn: ConnId, list: ListId, wants: Wants) {
        let wait = self.waits.get_mut(&conn).expect("the wait is open");
        let list_record = &mut self.lists[list.0 as usize];
        let entry = index(self.entries.insert(Entry {
            conn,
            list,
            wants,
            next_in_list: NONE,
            prev_in_list: list_record.last,
            next_in_wait: wait.first,
            prev_in_wait: NONE,
        }));
        match list_record.last {
            NONE => list_record.first = entry,
            last => self.entries[last as usize].next_in_list = entry,
        }
        list_record.last = entry;
        if wait.first != NONE {
            self.entries[wait.first as usize].prev_in_wait = entry;
        }
        wait.first = entry;
        wait.missing += 1;
    }

    /// A value has been written under the list's name: nobody misses it any more, but for those who
    /// wait for a change and for whom it does not differ from what they know. Those who now miss
    /// nothing are added to `woken`, in order of arrival. Returns the name when the list is empty and
    /// gone.
    pub(super) fn value_written(
        &mut self,
        list: ListId,
        mut differs: impl FnMut(&Arc<KnownValue>) -> bool,
        woken: &mut Vec<Woken>,
    ) -> Option<Box<[u8]>> {
        let mut at = self.lists[list.0 as usize].first;
        while at != NONE {
            let entry = &self.entries[at as usize];
            let next = entry.next_in_list;
            let is_settled = match &entry.wants {
                Wants::ValueOrElement | Wants::Barrier | Wants::Value => true,
                Wants::Change(known) => differs(known),
            };
            if is_settled {
                self.count_down(at, woken);
            }
            at = next;
        }
        self.drop_if_empty(list)
    }

    /// An element has been pushed under the list's name: entries that want one are counted down in
    /// order of arrival until one wait is over. Returns that wait, and the name when the list is
    /// empty and gone.
    pub(super) fn element_pushed(
        &mut self,
        list: ListId,
        woken: &mut Vec<Woken>,
    ) -> Option<Box<[u8]>> {
        let before = woken.len();
        let mut at = self.lists[list.0 as usize].first;
        while at != NONE && woken.len() == before {
            let entry = &self.entries[at as usize];
            let next = entry.next_in_list;
            if entry.wants.takes_element() {
                self.count_down(at, woken);
            }
            at = next;
        }
        self.drop_if_empty(list)
    }

    /// Forgets the wait of a connection, if it has one. The names whose lists are empty and gone
    /// are added to `emptied`. Costs the entries of this wait only.
    pub(super) fn cancel(&mut self, conn: ConnId, emptied: &mut Vec<Box<[u8]>>) {
        let Some(wait) = self.waits.remove(&conn) else {
            return;
        };
        let mut at = wait.first;
        while at != NONE {
            let entry = self.entries.remove(at as usize);
            self.unlink_from_list(&entry);
            emptied.extend(self.drop_if_empty(entry.list));
            at = entry.next_in_wait;
        }
    }

    fn count_down(&mut self, at: u32, woken: &mut Vec<Woken>) {
        let entry = self.entries.remove(at as usize);
        self.unlink_from_list(&entry);
        let wait = self.waits.get_mut(&entry.conn).expect("an entry's wait");
        wait.missing -= 1;
        if wait.missing == 0 {
            let wait = self.waits.remove(&entry.conn).expect("it was just there");
            woken.push(Woken {
                conn: entry.conn,
                answer: wait.answer,
            });
            return;
        }
        match entry.prev_in_wait {
            NONE => wait.first = entry.next_in_wait,
            prev => self.entries[prev as usize].next_in_wait = entry.next_in_wait,
        }
        if entry.next_in_wait != NONE {
            self.entries[entry.next_in_wait as usize].prev_in_wait = entry.prev_in_wait;
        }
    }

    #[cfg(test)]
    pub(super) const fn steps(&self) -> u64 {
        self.steps
    }

    fn unlink_from_list(&mut self, entry: &Entry) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
        let list = &mut self.lists[entry.list.0 as usize];
        match entry.prev_in_list {
            NONE => list.first = entry.next_in_list,
            prev => self.entries[prev as usize].next_in_list = entry.next_in_list,
        }
        match entry.next_in_list {
            NONE => list.last = entry.prev_in_list,
            next => self.entries[next as usize].prev_in_list = entry.prev_in_list,
        }
    }

    fn drop_if_empty(&mut self, list: ListId) -> Option<Box<[u8]>> {
        let empty = self.lists[list.0 as usize].first == NONE;
        empty.then(|| self.lists.remove(list.0 as usize).name)
    }

    /// The sentences of this module as code. `wanted` is called for each list with its name and
    /// what its entries want.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self, mut wanted: impl FnMut(ListId, &[u8], &[&Wants])) {
        let mut entries_in_lists = 0;
        for (id, list) in &self.lists {
            let mut wants = Vec::new();
            let (mut at, mut prev) = (list.first, NONE);
            while at != NONE {
                let entry = &self.entries[at as usize];
                assert_eq!(entry.prev_in_list, prev, "a list's chain is whole");
                assert_eq!(entry.list.0 as usize, id, "an entry knows its list");
                wants.push(&entry.wants);
                (prev, at) = (at, entry.next_in_list);
            }
            assert_eq!(list.last, prev, "a list knows its last entry");
            assert!(!wants.is_empty(), "no list is empty");
            entries_in_lists += wants.len();
            wanted(ListId(index(id)), &list.name, &wants);
        }
        let mut entries_in_waits = 0;
        for (conn, wait) in &self.waits {
            let (mut at, mut prev, mut missing) = (wait.first, NONE, 0);
            while at != NONE {
                let entry = &self.entries[at as usize];
                assert_eq!(entry.prev_in_wait, prev, "a wait's chain is whole");
                assert_eq!(entry.conn, *conn, "an entry knows its connection");
                missing += 1;
                (prev, at) = (at, entry.next_in_wait);
            }
            assert_eq!(wait.missing, missing, "a wait counts its entries");
            assert!(missing > 0, "a wait that misses nothing is over");
            entries_in_waits += missing as usize;
        }
        assert_eq!(entries_in_lists, self.entries.len(), "no entry is lost");
        assert_eq!(entries_in_waits, self.entries.len(), "no entry is lost");
    }
}

/// Slab keys are dense, so a `u32` overflows only with 2^32 entries: 192 GiB of them.
fn index(key: usize) -> u32 {
    u32::try_from(key).expect("fewer than 2^32 entries")
}
