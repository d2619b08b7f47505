//! The values and queues of all names, each value with its last two writes.
//!
//! A snapshot copies them in slices. A slot that changes before its turn is copied first, so that all copies
//! show the moment at which the snapshot started.

use std::sync::{Arc, Weak};

use byteorder::{ByteOrder, LittleEndian};

use super::extensions::{Copying, Effect, Mark, Ownership, Recorder, Sweeping};
use super::lent::Lent;
use super::slot::{ELEMENT_BYTES, Slot, SlotMap, Stored, Writer, Written};
use super::waiters::ListId;
use crate::decimal::{parse_decimal, write_decimal};
use crate::message::Payload;
use crate::stored_value::Value;
#[cfg(feature = "extensions")]
use {
    super::extensions::{KeysImage, Sweep},
    crate::journal::batch::BatchWriter,
};

/// The length word of an element in a reply.
const LENGTH_BYTES: usize = 8;

/// The memory of the ownership of a key besides its name and will, which are also kept at the owner.
pub(super) const OWNERSHIP_BYTES: usize = 256;

/// A deletion takes this many elements of a queue at a time.
const ELEMENTS_PER_VISIT: usize = 1024;

/// Deleting a name counts as much as this number of visits.
const VISITS_PER_DELETION: usize = 8;

/// The value is not a number, so nothing was added.
#[derive(Debug)]
pub(super) struct NotANumber;

#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Invariant: the first [`value_count`](Self::value_count) slots have a value, the remaining slots have none.
    map: SlotMap,
    value_count: usize,
    /// The bytes of the values and of their keys.
    stored_bytes: usize,
    /// The bytes of the queues' elements and names, with [`ELEMENT_BYTES`] more for each element.
    queued_bytes: usize,
    /// The bytes of wills, with [`OWNERSHIP_BYTES`] more for each owned key.
    owned_bytes: usize,
    /// The number of writes so far.
    writes: u64,
    /// The number of snapshots started so far.
    snapshots: u32,
    copy: Option<Box<Copying>>,
    /// The number of deletions of prefixes that have begun.
    sweeps: u32,
    /// The deletion that is under way.
    sweep: Option<Box<Sweeping>>,
    /// The recorder of a store with a journal.
    pub(super) recorder: Option<Box<Recorder>>,
    pub(super) lent: Lent,
    /// The last [`listing`](Self::listing), while the keys are the same and a reply holds it.
    listing: Weak<Vec<u8>>,
}

/// A value that was removed.
#[derive(Debug)]
pub(super) struct Deleted {
    pub(super) ownership: Option<Box<Ownership>>,
}

impl Slots {
    /// Returns the slot of a name. From now on, the replies of the current request depend on the last effect of the
    /// slot.
    #[inline]
    pub(super) fn get(&self, key: &[u8]) -> Option<&Slot> {
        let slot = self.map.get(key);
        self.look(key, slot);
        slot
    }

    #[inline]
    fn look(&self, key: &[u8], slot: Option<&Slot>) {
        if let Some(recorder) = &self.recorder {
            recorder.look(key, slot.map_or(Mark::default(), |slot| slot.changed));
        }
    }

    /// The names that have a value.
    pub(super) fn names_with_value(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let names = self.map.iter().map(|(name, _)| name);
        names.take(self.value_count)
    }

    /// The names that have a value, encoded for a reply, and whether they were not before. Replies share a listing while the
    /// keys are the same.
    pub(super) fn listing(&mut self) -> (Value, bool) {
        if let Some(bytes) = self.listing.upgrade() {
            return (Value::of_shared(bytes), false);
        }
        let length = self
            .names_with_value()
            .map(|name| LENGTH_BYTES + name.len());
        let mut listing = Vec::with_capacity(length.sum());
        for name in self.names_with_value() {
            let mut length = [0; LENGTH_BYTES];
            LittleEndian::write_u64(&mut length, name.len() as u64);
            listing.extend_from_slice(&length);
            listing.extend_from_slice(name);
        }
        let listing = Value::to_many(listing);
        if let Some((bytes, _)) = listing.shared() {
            self.listing = Arc::downgrade(bytes);
            self.lent.add_held(bytes);
        }
        (listing, true)
    }

    /// The number of names that the map has memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.map.capacity()
    }

    /// Returns every name.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<[u8]>, &Slot)> {
        self.map.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) const fn value_count(&self) -> usize {
        self.value_count
    }

    pub(super) const fn stored_bytes(&self) -> usize {
        self.stored_bytes
    }

    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub(super) const fn owned_bytes(&self) -> usize {
        self.owned_bytes
    }

    /// Writes a value. Returns the waiters of the name.
    pub(super) fn write(&mut self, key: &[u8], new: Payload<'_>, writer: Writer) -> Option<ListId> {
        let written = self.next_write(writer);
        self.stored_bytes += new.as_bytes().len();
        let (index, slot) = find_or_insert(&mut self.map, &mut self.copy, self.snapshots, key);
        if let Some(recorder) = &mut self.recorder {
            let value = new.as_bytes();
            slot.changed = recorder.record(slot.changed, Effect::Put { key, value });
        }
        let waiters = slot.waiters;
        if let Some(stored) = &mut slot.stored {
            self.stored_bytes -= stored.value.as_bytes().len();
            self.lent.add(&stored.value);
            stored.rewritten(written);
            match new {
                Payload::Borrowed(bytes) => stored.value.assign(bytes),
                Payload::Owned(value) => stored.value = value,
            }
        } else {
            slot.stored = Some(Stored {
                value: new.into_value(),
                written,
                previous: None,
            });
            self.stored_bytes += key.len();
            self.value_added(index);
        }
        waiters
    }

    /// docs/spec/wire.md, ADD and BARRIER: adds to the number at `key`. Returns the sum and the waiters of the name.
    ///
    /// # Errors
    /// If the value is not a number; then nothing has changed.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        delta: i64,
        writer: Writer,
    ) -> Result<(i64, Option<ListId>), NotANumber> {
        let (index, slot) = find_or_insert(&mut self.map, &mut self.copy, self.snapshots, key);
        let waiters = slot.waiters;
        let current = match slot.value() {
            None => 0,
            Some(value) => match parse_decimal(value.as_bytes()) {
                Some(number) => number,
                None => {
                    if let Some(recorder) = &self.recorder {
                        recorder.look(key, slot.changed);
                    }
                    return Err(NotANumber);
                }
            },
        };
        let sum = current.wrapping_add(delta);
        self.writes += 1;
        let written = Written::new(self.writes, writer);
        let is_new = slot.stored.is_none();
        let stored = match &mut slot.stored {
            Some(stored) => {
                self.stored_bytes -= stored.value.as_bytes().len();
                self.lent.add(&stored.value);
                stored.rewritten(written);
                stored
            }
            None => {
                self.stored_bytes += key.len();
                slot.stored.insert(Stored {
                    value: Value::from(&[][..]),
                    written,
                    previous: None,
                })
            }
        };
        let text = stored.value.make_short();
        write_decimal(sum, text);
        self.stored_bytes += text.len();
        if let Some(recorder) = &mut self.recorder {
            slot.changed = recorder.record(slot.changed, Effect::Put { key, value: text });
        }
        if is_new {
            self.value_added(index);
        }
        Ok((sum, waiters))
    }

    /// Appends to a value, or writes the first one. Returns the waiters of the name.
    pub(super) fn append(
        &mut self,
        key: &[u8],
        more: Payload<'_>,
        writer: Writer,
    ) -> Option<ListId> {
        match find(&mut self.map, &mut self.copy, self.snapshots, key) {
            Some((
                _,
                Slot {
                    stored: Some(stored),
                    waiters,
                    changed,
                    ..
                },
            )) => {
                self.writes += 1;
                self.stored_bytes += more.as_bytes().len();
                stored.rewritten(Written::new(self.writes, writer));
                let bytes = more.as_bytes();
                // Replies keep what there was before.
                self.lent.add(&stored.value);
                stored.value.append(bytes);
                if let Some(recorder) = &mut self.recorder {
                    *changed = recorder.record(*changed, Effect::Append { key, bytes });
                }
                *waiters
            }
            _ => self.write(key, more, writer),
        }
    }

    /// Removes a value; `None` if there is none.
    pub(super) fn delete(&mut self, key: &[u8]) -> Option<Deleted> {
        let found = find(&mut self.map, &mut self.copy, self.snapshots, key);
        let Some((index, slot)) = found else {
            self.look(key, None);
            return None;
        };
        let Some(deleted) = slot.stored.take() else {
            if let Some(recorder) = &self.recorder {
                recorder.look(key, slot.changed);
            }
            return None;
        };
        let ownership = slot.ownership.take();
        if let Some(ownership) = &ownership {
            self.owned_bytes -= ownership_bytes(ownership);
        }
        if let Some(recorder) = &mut self.recorder {
            slot.changed = recorder.record(slot.changed, Effect::Delete { key });
        }
        self.stored_bytes -= key.len() + deleted.value.as_bytes().len();
        self.lent.add(&deleted.value);
        self.listing = Weak::new();
        self.value_count -= 1;
        let last = self.value_count;
        self.exchange(index, last);
        self.remove_if_empty(last);
        Some(Deleted { ownership })
    }

    /// Removes the slot at this index, which has no value, if nothing is left in it.
    fn remove_if_empty(&mut self, index: usize) {
        let (key, slot) = self.map.at(index);
        if !slot.is_empty() {
            return;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.removed(key, slot.changed);
        }
        self.map.remove_at(index);
    }

    /// The slot at `index` has its first value.
    fn value_added(&mut self, index: usize) {
        let end = self.value_count;
        self.value_count += 1;
        self.listing = Weak::new();
        self.exchange(index, end);
    }

    /// Exchanges two slots, which a snapshot in progress copies first.
    fn exchange(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        if let Some(copy) = &mut self.copy {
            for index in [a, b] {
                let (name, slot) = self.map.at_mut(index);
                copy.copy(name, slot, self.snapshots);
            }
        }
        if let Some(sweep) = &mut self.sweep {
            for (from, to) in [(a, b), (b, a)] {
                sweep.slot_moves(self.map.at(from).0, from, to);
            }
        }
        self.map.exchange(a, b);
    }

    /// Adds an element to a queue. Returns the waiters of the name.
    pub(super) fn push(&mut self, key: &[u8], element: Value) -> Option<ListId> {
        let (_, slot) = find_or_insert(&mut self.map, &mut self.copy, self.snapshots, key);
        if slot.queue.is_none() {
            self.queued_bytes += key.len();
        }
        self.queued_bytes += ELEMENT_BYTES + element.as_bytes().len();
        if let Some(recorder) = &mut self.recorder {
            let element = element.as_bytes();
            slot.changed = recorder.record(slot.changed, Effect::Push { key, element });
        }
        slot.pushed_in = self.sweeps;
        slot.queue.get_or_insert_default().push_back(element);
        slot.waiters
    }

    /// Removes the first element of a queue.
    pub(super) fn pop(&mut self, key: &[u8]) -> Option<Value> {
        let (index, slot) = find(&mut self.map, &mut self.copy, self.snapshots, key)?;
        let queue = slot.queue.as_mut()?;
        let element = queue.pop_front();
        if let Some(recorder) = &mut self.recorder {
            slot.changed = recorder.record(slot.changed, Effect::Pop { key, count: 1 });
        }
        let element_bytes = element.as_ref().map_or(0, |it| it.as_bytes().len());
        self.queued_bytes -= ELEMENT_BYTES + element_bytes;
        if queue.is_empty() {
            self.queued_bytes -= key.len();
            slot.queue = None;
            self.remove_if_empty(index);
        }
        element
    }

    /// The list of the waiters of a name; `new_list` makes one if there is none.
    pub(super) fn waiters_of(
        &mut self,
        key: &[u8],
        new_list: impl FnOnce(Arc<[u8]>) -> ListId,
    ) -> ListId {
        // Waiters are not part of a slot's copy.
        let index = self
            .map
            .number_of(key)
            .unwrap_or_else(|| insert(&mut self.map, self.snapshots, key));
        let (name, slot) = self.map.at_mut(index);
        *slot
            .waiters
            .get_or_insert_with(|| new_list(Arc::clone(name)))
    }

    /// The last waiter of a name was removed.
    pub(super) fn remove_waiters(&mut self, name: &[u8]) {
        if let Some(index) = self.map.number_of(name) {
            self.map.at_mut(index).1.waiters = None;
            self.remove_if_empty(index);
        }
    }

    const fn next_write(&mut self, writer: Writer) -> Written {
        self.writes += 1;
        Written::new(self.writes, writer)
    }
}

#[cfg(feature = "extensions")]
impl Slots {
    /// Gives the value of a name, which has one, an owner. Returns the name.
    pub(super) fn own(&mut self, key: &[u8], ownership: Ownership) -> Arc<[u8]> {
        let (index, slot) = find_or_insert(&mut self.map, &mut self.copy, self.snapshots, key);
        debug_assert!(slot.stored.is_some(), "only a value has an owner");
        if let Some(recorder) = &mut self.recorder {
            slot.changed = recorder.record(slot.changed, ownership.effect(key));
        }
        self.owned_bytes += ownership_bytes(&ownership);
        if let Some(before) = slot.ownership.replace(Box::new(ownership)) {
            self.owned_bytes -= ownership_bytes(&before);
        }
        Arc::clone(self.map.at(index).0)
    }

    /// Removes elements from the head of a queue: at most `max`, and together with a length word each at most
    /// `bytes_max`, but at least one if the queue has any.
    pub(super) fn take(&mut self, key: &[u8], max: usize, bytes_max: usize) -> Vec<Value> {
        let found = find(&mut self.map, &mut self.copy, self.snapshots, key);
        let Some((index, slot)) = found else {
            return Vec::new();
        };
        let Some(queue) = &mut slot.queue else {
            return Vec::new();
        };
        let mut bytes = 0_usize;
        let fits = |element: &&Value| {
            let is_first = bytes == 0;
            bytes += LENGTH_BYTES + element.as_bytes().len();
            is_first || bytes <= bytes_max
        };
        let count = queue.iter().take(max).take_while(fits).count();
        let taken: Vec<Value> = queue.drain(..count).collect();
        if let Some(recorder) = &mut self.recorder {
            // A queue of more elements than that does not fit into the memory.
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            slot.changed = recorder.record(slot.changed, Effect::Pop { key, count });
        }
        let taken_bytes = |it: &Value| ELEMENT_BYTES + it.as_bytes().len();
        self.queued_bytes -= taken.iter().map(taken_bytes).sum::<usize>();
        if queue.is_empty() {
            self.queued_bytes -= key.len();
            slot.queue = None;
            self.remove_if_empty(index);
        }
        taken
    }

    /// Returns a deletion of the names with this prefix that begins now, except for names with the `kept` prefix.
    pub(super) fn new_sweep(&mut self, prefix: &[u8], kept: Option<&[u8]>) -> Sweep {
        self.sweeps = self.sweeps.saturating_add(1);
        Sweep::new(prefix, kept, self.writes, self.sweeps)
    }

    /// Starts a deletion: from now on, [`sweep`](Self::sweep) deletes its names.
    pub(super) fn start_sweep(&mut self, sweep: Sweep) {
        self.sweep = Some(Box::new(Sweeping::new(sweep, self.map.len())));
    }

    /// Continues a deletion, for at most this many visits. Reports the owned values that it deletes. Returns the number of
    /// deleted names once all are.
    pub(super) fn sweep(
        &mut self,
        mut budget: usize,
        mut disowned: impl FnMut(&[u8], &Ownership),
    ) -> Option<usize> {
        while budget > 0 {
            let sweep = self.sweep.as_mut()?;
            let Some(name) = sweep.next_name(&self.map, &mut budget) else {
                let is_done = sweep.is_done();
                return is_done.then(|| self.sweep.take().map_or(0, |it| it.deleted));
            };
            let Some(slot) = self.map.get(&name) else {
                continue;
            };
            let deletes_value = sweep.deletes_value(slot);
            let deletes_queue = sweep.deletes_queue(slot);
            if deletes_queue {
                let taken = self.take(&name, ELEMENTS_PER_VISIT, usize::MAX);
                budget = budget.saturating_sub(taken.len());
                if self.map.get(&name).is_some_and(|it| it.queue.is_some())
                    && let Some(sweep) = &mut self.sweep
                {
                    sweep.visit_later(name);
                    continue;
                }
            }
            if deletes_value
                && let Some(deleted) = self.delete(&name)
                && let Some(ownership) = &deleted.ownership
            {
                disowned(&name, ownership);
            }
            if (deletes_value || deletes_queue)
                && let Some(sweep) = &mut self.sweep
            {
                sweep.deleted += 1;
                budget = budget.saturating_sub(VISITS_PER_DELETION);
            }
        }
        None
    }

    /// Starts a snapshot of the current moment, with at most this many keys and as many queues. A snapshot in
    /// progress is dropped.
    pub(super) fn start_copy(&mut self, keys_max: usize) {
        let keys = self.value_count.min(keys_max);
        let image = KeysImage::with_capacity(keys, self.stored_bytes);
        self.copy_by(Copying::for_observers(self.map.len(), image, keys_max));
    }

    /// Starts a snapshot of the current moment for the journal, which has this position, after everything that is
    /// already written. A snapshot in progress is dropped.
    pub(super) fn start_chunks(&mut self, position: u64, writer: BatchWriter) {
        self.copy_by(Copying::for_journal(self.map.len(), position, writer));
    }

    fn copy_by(&mut self, copy: Copying) {
        self.snapshots = self.snapshots.wrapping_add(1);
        self.copy = Some(Box::new(copy));
    }

    /// Visits at most `budget` slots, and takes them off it. Returns the copy once it is complete.
    pub(super) fn copy_slice(&mut self, budget: &mut usize) -> Option<KeysImage> {
        let copy = self.copy.as_mut()?;
        if !copy.visit_slots(&mut self.map, self.snapshots, budget) {
            return None;
        }
        self.copy.take()?.into_image()
    }

    /// Continues a snapshot for the journal. Returns the finished chunks, and whether they are the last.
    pub(super) fn copy_chunks(&mut self, mut budget: usize) -> (Vec<Vec<u8>>, bool) {
        let Some(copy) = &mut self.copy else {
            return (Vec::new(), false);
        };
        let is_done = copy.visit_slots(&mut self.map, self.snapshots, &mut budget);
        let Some(finished) = copy.take_chunks(is_done) else {
            return (Vec::new(), false);
        };
        if is_done {
            self.copy = None;
        }
        (finished, is_done)
    }
}

/// The memory that ownership takes.
const fn ownership_bytes(ownership: &Ownership) -> usize {
    OWNERSHIP_BYTES + ownership.will_bytes()
}

/// The slot of a name with its index, for a change: a snapshot in progress copies it first.
#[inline]
fn find<'m>(
    map: &'m mut SlotMap,
    copy: &mut Option<Box<Copying>>,
    snapshot: u32,
    key: &[u8],
) -> Option<(usize, &'m mut Slot)> {
    let index = map.number_of(key)?;
    let (name, slot) = map.at_mut(index);
    if let Some(copy) = copy {
        copy.copy(name, slot, snapshot);
    }
    Some((index, slot))
}

/// [`find`], or a new slot.
#[inline]
fn find_or_insert<'m>(
    map: &'m mut SlotMap,
    copy: &mut Option<Box<Copying>>,
    snapshot: u32,
    key: &[u8],
) -> (usize, &'m mut Slot) {
    let index = match map.number_of(key) {
        Some(index) => index,
        None => insert(map, snapshot, key),
    };
    let (name, slot) = map.at_mut(index);
    if let Some(copy) = copy {
        copy.copy(name, slot, snapshot);
    }
    (index, slot)
}

/// Adds a slot, and returns its index. It does not belong to a snapshot that has started.
fn insert(map: &mut SlotMap, snapshot: u32, key: &[u8]) -> usize {
    let slot = Slot {
        copied_in: snapshot,
        ..Slot::default()
    };
    map.insert(key.into(), slot)
}
