//! Everything under one name: a value with its last two writes, a queue, and waits.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use super::extensions::{Mark, Ownership};
use super::name_map::NameMap;
use super::waiters::ListId;
use crate::message::ConnectionId;
use crate::moment::Moment;
use crate::stored_value::Value;

/// The memory of an element of a queue besides its bytes, with the allocator's overhead.
pub(super) const ELEMENT_BYTES: usize = 48;

/// Everything under one name. Invariant: never entirely empty.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) stored: Option<Stored>,
    /// Invariant: not empty.
    #[expect(
        clippy::box_collection,
        reason = "few names have a queue, so the slots of the other names stay small"
    )]
    pub(super) queue: Option<Box<VecDeque<Value>>>,
    pub(super) waiters: Option<ListId>,
    /// Invariant: `None` without a value.
    pub(super) ownership: Option<Box<Ownership>>,
    /// The last [`Sweep`](super::extensions::Sweep) that had begun when an element was pushed.
    pub(super) pushed_in: u32,
    /// The last snapshot that has copied this slot, or need not.
    pub(super) copied_in: u32,
    /// The last effect on the value and the queue that the journal was given.
    pub(super) changed: Mark,
}

impl Slot {
    /// docs/spec/wire.md, CHECK: a value, or a queue that is not empty.
    pub(super) const fn exists(&self) -> bool {
        self.stored.is_some() || self.queue.is_some()
    }

    pub(super) const fn is_empty(&self) -> bool {
        !self.exists() && self.waiters.is_none()
    }

    /// The bytes of the value and the elements.
    pub(super) fn bytes(&self) -> usize {
        let elements = self.queue.iter().flat_map(|queue| queue.iter());
        let values = self.value().into_iter().chain(elements);
        values.map(|value| value.as_bytes().len()).sum()
    }

    pub(super) fn value(&self) -> Option<&Value> {
        self.stored.as_ref().map(|stored| &stored.value)
    }
}

/// Numbered, so that a snapshot can continue where it stopped, and a listing need not visit names without a value.
pub(super) type SlotMap = NameMap<Slot>;

/// The connection that writes, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writer {
    pub(super) connection: ConnectionId,
    pub(super) at: Moment,
}

/// One write of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) version: NonZeroU64,
    pub(super) writer: ConnectionId,
    pub(super) at: Moment,
}

impl Written {
    /// The write with this number; the first one has the number 1.
    pub(super) const fn new(number: u64, writer: Writer) -> Self {
        Self {
            version: NonZeroU64::MIN.saturating_add(number - 1),
            writer: writer.connection,
            at: writer.at,
        }
    }
}

/// A value and its last two writes.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) value: Value,
    pub(super) written: Written,
    pub(super) previous: Option<Written>,
}

impl Stored {
    /// Records a write after the first one.
    pub(super) const fn rewritten(&mut self, written: Written) {
        self.previous = Some(self.written);
        self.written = written;
    }
}
