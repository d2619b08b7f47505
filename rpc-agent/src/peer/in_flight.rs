//! The calls to one peer that await a response, indexed by call id and by deadline.
//!
//! No clock: the current time is an argument.

use std::collections::BTreeMap;

use slab::Slab;

/// End of a linked list.
const NONE: u32 = u32::MAX;

/// Represents no deadline.
const NEVER: u64 = u64::MAX;

/// A call's id on the wire: its slot, and the number of the call. Unique among 2^32 calls in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallId(u64);

impl CallId {
    pub(crate) const fn from_wire(number: u64) -> Self {
        Self(number)
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    const fn new(slot: u32, number: u32) -> Self {
        Self(((number as u64) << 32) | slot as u64)
    }

    const fn slot(self) -> u32 {
        (self.0 & 0xFFFF_FFFF) as u32
    }
}

/// Calls that await a response, each with a value and an optional deadline in milliseconds of the caller's
/// clock.
///
/// Adding and completing a call takes constant time, except for the first and the last call of a deadline,
/// and allocates nothing while the number of calls stays below its previous maximum.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    calls: Slab<Entry<T>>,
    /// The number of the latest call; 0 before the first call.
    last_number: u32,
    /// Head of the list of calls, newest first, for each deadline except `recent`.
    buckets: BTreeMap<u64, u32>,
    /// The deadline added last. Most calls have the same timeout, so consecutive calls share a deadline, and
    /// the tree changes at most once per millisecond.
    recent: Bucket,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    deadline_ms: u64,
    /// `NONE` when no call has this deadline.
    first: u32,
}

#[derive(Debug)]
struct Entry<T> {
    id: CallId,
    value: T,
    deadline_ms: u64,
    /// Neighbours in the list of calls with this deadline.
    previous: u32,
    next: u32,
}

impl<T> InFlight<T> {
    /// Creates an empty table. Allocates nothing.
    pub(crate) const fn new() -> Self {
        Self {
            calls: Slab::new(),
            last_number: 0,
            buckets: BTreeMap::new(),
            recent: Bucket {
                deadline_ms: NEVER,
                first: NONE,
            },
        }
    }

    /// Number of calls.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Adds a call. The caller rounds the deadline up to milliseconds; `None` is no deadline.
    ///
    /// # Panics
    /// If 2^32 - 1 calls are in flight already.
    pub(crate) fn insert(&mut self, deadline_ms: Option<u64>, value: T) -> CallId {
        let deadline_ms = deadline_ms.unwrap_or(NEVER);
        let next = if deadline_ms == NEVER {
            NONE
        } else {
            self.make_recent(deadline_ms);
            self.recent.first
        };
        let vacant = self.calls.vacant_entry();
        let slot = u32::try_from(vacant.key()).unwrap_or(NONE);
        assert!(
            slot != NONE,
            "fewer than 2^32 calls to one peer are in flight"
        );
        // Calls never have number 0, so that a small id invented by a peer matches no call.
        self.last_number = self.last_number.checked_add(1).unwrap_or(1);
        let id = CallId::new(slot, self.last_number);
        vacant.insert(Entry {
            id,
            value,
            deadline_ms,
            previous: NONE,
            next,
        });
        if deadline_ms != NEVER {
            if let Some(neighbour) = self.entry_mut(next) {
                neighbour.previous = slot;
            }
            self.recent.first = slot;
        }
        id
    }

    /// The value of a call; `None` if it is not in flight.
    pub(crate) fn get(&self, id: CallId) -> Option<&T> {
        let entry = self.calls.get(id.slot() as usize)?;
        (entry.id == id).then_some(&entry.value)
    }

    pub(crate) fn contains(&self, id: CallId) -> bool {
        self.get(id).is_some()
    }

    /// Removes the call that a response belongs to; `None` if it has expired or completed, or never was.
    pub(crate) fn complete(&mut self, id: CallId) -> Option<T> {
        self.get(id)?;
        let entry = self.calls.try_remove(id.slot() as usize)?;
        self.unlink(&entry);
        Some(entry.value)
    }

    /// Removes all calls with a deadline of at most `now_ms`, by deadline, then in the order of insertion.
    pub(crate) fn expire(&mut self, now_ms: u64) -> Vec<(CallId, T)> {
        let mut expired = Vec::new();
        while let Some(deadline_ms) = self.next_deadline_ms()
            && deadline_ms <= now_ms
        {
            let mut index = if self.recent.first != NONE && deadline_ms == self.recent.deadline_ms {
                std::mem::replace(&mut self.recent.first, NONE)
            } else {
                self.buckets.remove(&deadline_ms).unwrap_or(NONE)
            };
            let start = expired.len();
            while let Some(entry) = self.calls.try_remove(index as usize) {
                expired.push((entry.id, entry.value));
                index = entry.next;
            }
            expired[start..].reverse();
        }
        expired
    }

    /// The earliest deadline; `None` if no call has one.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        let recent = (self.recent.first != NONE).then_some(self.recent.deadline_ms);
        let other = self
            .buckets
            .first_key_value()
            .map(|(deadline, _)| *deadline);
        match (recent, other) {
            (Some(recent), Some(other)) => Some(recent.min(other)),
            (recent, other) => recent.or(other),
        }
    }

    /// Removes all calls, in no particular order. Responses to them are late from now on.
    pub(crate) fn drain(&mut self) -> Vec<(CallId, T)> {
        self.buckets.clear();
        self.recent.first = NONE;
        let calls = self.calls.drain();
        calls.map(|entry| (entry.id, entry.value)).collect()
    }

    fn make_recent(&mut self, deadline_ms: u64) {
        if self.recent.deadline_ms == deadline_ms {
            return;
        }
        let Bucket {
            deadline_ms: before,
            first,
        } = self.recent;
        if first != NONE {
            self.buckets.insert(before, first);
        }
        self.recent = Bucket {
            deadline_ms,
            first: self.buckets.remove(&deadline_ms).unwrap_or(NONE),
        };
    }

    fn entry_mut(&mut self, index: u32) -> Option<&mut Entry<T>> {
        self.calls.get_mut(index as usize)
    }

    /// Removes an entry, which has left the table, from the list of its deadline.
    fn unlink(&mut self, entry: &Entry<T>) {
        if entry.deadline_ms == NEVER {
            return;
        }
        if let Some(next) = self.entry_mut(entry.next) {
            next.previous = entry.previous;
        }
        if let Some(previous) = self.entry_mut(entry.previous) {
            previous.next = entry.next;
        } else if entry.deadline_ms == self.recent.deadline_ms {
            self.recent.first = entry.next;
        } else if entry.next == NONE {
            self.buckets.remove(&entry.deadline_ms);
        } else if let Some(first) = self.buckets.get_mut(&entry.deadline_ms) {
            *first = entry.next;
        }
    }

    /// Checks that each call with a deadline is in the list of that deadline once.
    #[cfg(test)]
    fn check_invariants(&self) {
        let mut listed = 0;
        let recent = (self.recent.deadline_ms, self.recent.first);
        let buckets = self
            .buckets
            .iter()
            .map(|(deadline, first)| (*deadline, *first));
        assert!(!self.buckets.contains_key(&self.recent.deadline_ms));
        for (deadline_ms, first) in buckets.clone().chain([recent]) {
            let (mut index, mut before) = (first, NONE);
            while index != NONE {
                let entry = &self.calls[index as usize];
                assert_eq!((entry.deadline_ms, entry.previous), (deadline_ms, before));
                (before, index) = (index, entry.next);
                listed += 1;
            }
        }
        assert!(buckets.clone().all(|(_, first)| first != NONE));
        let calls = self.calls.iter();
        let with_deadline = calls.filter(|(_, entry)| entry.deadline_ms != NEVER);
        assert_eq!(with_deadline.count(), listed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn calls_expire_by_deadline_then_by_insertion_order() {
        let mut calls = InFlight::new();
        for (name, deadline_ms) in [("a", 5), ("b", 3), ("c", 5), ("d", 9), ("e", 5), ("f", 3)] {
            calls.insert(Some(deadline_ms), name);
        }
        calls.insert(None, "never");
        let names = |expired: Vec<(CallId, &'static str)>| -> String {
            expired.into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(calls.next_deadline_ms(), Some(3));
        assert_eq!(names(calls.expire(2)), "");
        assert_eq!(names(calls.expire(5)), "bface");
        assert_eq!(calls.next_deadline_ms(), Some(9));
        assert_eq!(names(calls.expire(u64::MAX - 1)), "d");
        assert_eq!(calls.next_deadline_ms(), None);
        assert_eq!((calls.len(), names(calls.drain())), (1, "never".to_owned()));
    }

    #[test]
    fn late_and_unknown_responses_complete_nothing_after_a_slot_is_reused() {
        let mut calls = InFlight::new();
        let first = calls.insert(Some(1), 'a');
        assert_eq!(calls.expire(1), [(first, 'a')]);
        let second = calls.insert(Some(2), 'b');
        assert_eq!(second.slot(), first.slot());
        assert_eq!(calls.complete(first), None);
        assert!(!calls.contains(first) && calls.contains(second));
        assert_eq!(calls.complete(second), Some('b'));
        assert_eq!(calls.complete(second), None);
        for id in [
            CallId::new(0, 3),
            CallId::new(0, 0),
            CallId::new(1, 1),
            CallId(u64::MAX),
        ] {
            assert_eq!(calls.complete(id), None, "{id:?}");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(Option<u64>),
        /// One of all ids issued so far.
        Complete(prop::sample::Index),
        Expire(u64),
        Drain,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => prop::option::weighted(0.9, 0..30_u64).prop_map(Step::Insert),
            6 => any::<prop::sample::Index>().prop_map(Step::Complete),
            1 => (0..30_u64).prop_map(Step::Expire),
            1 => Just(Step::Drain),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_with_linear_search(steps in steps()) {
            let mut calls = InFlight::new();
            let mut model: BTreeMap<usize, (CallId, Option<u64>)> = BTreeMap::new();
            let mut given: Vec<CallId> = Vec::new();
            for step in steps {
                match step {
                    Step::Insert(deadline_ms) => {
                        let id = calls.insert(deadline_ms, given.len());
                        prop_assert!(!given.contains(&id));
                        model.insert(given.len(), (id, deadline_ms));
                        given.push(id);
                    }
                    Step::Complete(index) if !given.is_empty() => {
                        let number = index.index(given.len());
                        let expected = model.remove(&number).map(|_| number);
                        prop_assert_eq!(calls.complete(given[number]), expected);
                    }
                    Step::Complete(_) => {}
                    Step::Expire(now_ms) => {
                        let mut due: Vec<(u64, usize)> = model
                            .iter()
                            .filter_map(|(number, (_, deadline))| Some(((*deadline)?, *number)))
                            .filter(|(deadline, _)| *deadline <= now_ms)
                            .collect();
                        due.sort_unstable();
                        let expected: Vec<_> = due
                            .into_iter()
                            .map(|(_, number)| (given[number], number))
                            .collect();
                        model.retain(|_, (_, deadline)| deadline.is_none_or(|it| it > now_ms));
                        prop_assert_eq!(calls.expire(now_ms), expected);
                    }
                    Step::Drain => {
                        let mut drained = calls.drain();
                        drained.sort_unstable_by_key(|(_, number)| *number);
                        let expected: Vec<_> =
                            model.iter().map(|(number, (id, _))| (*id, *number)).collect();
                        model.clear();
                        prop_assert_eq!(drained, expected);
                    }
                }
                calls.check_invariants();
                prop_assert_eq!(calls.len(), model.len());
                let earliest = model.values().filter_map(|(_, deadline)| *deadline).min();
                prop_assert_eq!(calls.next_deadline_ms(), earliest);
            }
        }
    }
}
