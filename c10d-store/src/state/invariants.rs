//! The invariants between requests.

use super::StoreState;
use super::slot::ELEMENT_BYTES;
use super::waiters::Wants;

/// Debug builds check the invariants after each request while the store has at most this many items,
/// since a check costs time linear in the size of the store.
#[cfg(debug_assertions)]
const CHECKED_ITEMS_MAX: usize = 64;

impl StoreState {
    /// Panics if an invariant is violated, which is a bug in this module.
    ///
    /// - No slot and no queue is empty; values and their bytes are counted, and the slots with a value are the first
    ///   slots.
    /// - A slot and its list of waiters refer to each other, and the chains are consistent.
    /// - No WAIT or QUEUE_TAKE waits for a queue with more elements than woken connections, except of a connection that is
    ///   away. There is no such invariant
    ///   for values: an unfinished BARRIER creates its counter without waking waits (docs/spec/wire.md).
    pub(crate) fn check_invariants(&self) {
        let mut values = 0;
        let mut bytes = 0;
        let mut queued = 0;
        let mut lists = 0;
        let mut owned = 0;
        for (index, (key, slot)) in self.slots.iter().enumerate() {
            let is_listed = index < self.slots.value_count();
            assert_eq!(slot.stored.is_some(), is_listed, "values come first");
            assert!(!slot.is_empty(), "no slot is empty");
            assert!(
                slot.queue.as_ref().is_none_or(|queue| !queue.is_empty()),
                "no queue is empty"
            );
            if let Some(value) = slot.value() {
                values += 1;
                bytes += key.len() + value.as_bytes().len();
            }
            if let Some(queue) = &slot.queue {
                let elements = queue.iter().map(|it| ELEMENT_BYTES + it.as_bytes().len());
                queued += key.len() + elements.sum::<usize>();
            }
            lists += usize::from(slot.waiters.is_some());
            owned += usize::from(slot.ownership.is_some());
            assert!(
                slot.ownership.is_none() || slot.stored.is_some(),
                "only a value is owned"
            );
        }
        assert_eq!(values, self.slots.value_count(), "the values are counted");
        assert_eq!(bytes, self.slots.stored_bytes(), "the bytes are counted");
        assert_eq!(queued, self.slots.queued_bytes(), "elements are counted");
        self.check_extensions(owned);
        assert!(self.woken.is_empty() && self.emptied.is_empty());

        self.waiters.check_invariants(|list, name, wants| {
            lists -= 1;
            let slot = self.slots.get(name).expect("a list's name has a slot");
            assert_eq!(slot.waiters, Some(list), "a slot knows its list");
            let elements = slot.queue.as_ref().map_or(0, |queue| queue.len());
            let reserved = self
                .reserved_wakeups
                .values()
                .filter(|key| ***key == *name)
                .count();
            if elements > reserved {
                let wants_one =
                    |wants: &&Wants| matches!(wants, Wants::ValueOrElement | Wants::Element);
                assert!(
                    !wants.iter().any(wants_one),
                    "no wait sleeps beside an element"
                );
            }
        });
        assert_eq!(lists, 0, "every slot's list exists");
        for conn in self.reserved_wakeups.keys() {
            assert!(
                !self.waiters.is_waiting(*conn),
                "a woken connection does not wait"
            );
        }
    }

    #[cfg(debug_assertions)]
    pub(super) fn check_invariants_sometimes(&self) {
        let items = self.slots.len() + self.waiters.len() + self.connection_count();
        if items <= CHECKED_ITEMS_MAX {
            self.check_invariants();
        }
    }
}
