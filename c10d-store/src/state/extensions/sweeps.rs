//! The deletions of names with a prefix that wait for their turn or their time (docs/spec/wire-extensions.md, DELETE_PREFIX).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::journal::batch::{BatchWriter, Effect};
use crate::message::ConnId;
use crate::moment::Moment;
use crate::state::slot::{Slot, SlotMap};

/// The most prefixes that are deleted later.
pub(super) const SCHEDULED_MAX: usize = 4096;

/// The memory of a scheduled prefix besides its bytes.
pub(super) const SCHEDULED_BYTES: usize = 256;

/// A deletion of the names with a prefix that were not written since.
#[derive(Debug, Clone)]
pub(in crate::state) struct Sweep {
    prefix: Arc<[u8]>,
    /// Names with this prefix stay.
    kept: Option<Arc<[u8]>>,
    /// The number of writes when it began.
    writes: u64,
    number: u32,
}

impl Sweep {
    /// Begins after this many writes, as the deletion with this number.
    pub(in crate::state) fn new(
        prefix: &[u8],
        kept: Option<&[u8]>,
        writes: u64,
        number: u32,
    ) -> Self {
        Self {
            prefix: prefix.into(),
            kept: kept.map(Arc::from),
            writes,
            number,
        }
    }

    fn deletes(&self, name: &[u8]) -> bool {
        name.starts_with(&self.prefix)
            && !self
                .kept
                .as_ref()
                .is_some_and(|kept| name.starts_with(kept))
    }

    /// Whether it deletes the names with this prefix but some.
    pub(super) fn keeps_of(&self, prefix: &[u8]) -> bool {
        *self.prefix == *prefix && self.kept.is_some()
    }
}

/// A deletion that is under way. It visits the slots as [`Copying`](super::copies::Copying) does.
#[derive(Debug)]
pub(in crate::state) struct Sweeping {
    sweep: Sweep,
    /// The slots with a smaller index have not been visited.
    left: usize,
    /// Names that were not visited, and whose slots have moved up, or whose queue is long.
    moved: Vec<Arc<[u8]>>,
    pub(in crate::state) deleted: usize,
}

impl Sweeping {
    /// Starts to visit this many slots.
    pub(in crate::state) const fn new(sweep: Sweep, slots: usize) -> Self {
        Self {
            sweep,
            left: slots,
            moved: Vec::new(),
            deleted: 0,
        }
    }

    /// A slot changes its place.
    pub(in crate::state) fn slot_moves(&mut self, name: &Arc<[u8]>, from: usize, to: usize) {
        if (from..to).contains(&self.left.wrapping_sub(1)) && self.sweep.deletes(name) {
            self.visit_later(Arc::clone(name));
        }
    }

    /// Visits a name again.
    pub(in crate::state) fn visit_later(&mut self, name: Arc<[u8]>) {
        self.moved.push(name);
    }

    /// The next name with the prefix; `None` if the budget is used up, or all names were visited.
    pub(in crate::state) fn next_name(
        &mut self,
        map: &SlotMap,
        budget: &mut usize,
    ) -> Option<Arc<[u8]>> {
        if let Some(name) = self.moved.pop() {
            return Some(name);
        }
        self.left = self.left.min(map.len());
        while self.left > 0 && *budget > 0 {
            self.left -= 1;
            *budget -= 1;
            let (name, _) = map.at(self.left);
            if self.sweep.deletes(name) {
                return Some(Arc::clone(name));
            }
        }
        None
    }

    /// Whether all names were visited.
    pub(in crate::state) const fn is_done(&self) -> bool {
        self.left == 0 && self.moved.is_empty()
    }

    /// Whether the value was not written since the deletion began.
    pub(in crate::state) fn deletes_value(&self, slot: &Slot) -> bool {
        let written = slot.stored.as_ref().map(|stored| stored.written.version);
        written.is_some_and(|version| version.get() <= self.sweep.writes)
    }

    /// Whether no element was pushed since the deletion began.
    pub(in crate::state) const fn deletes_queue(&self, slot: &Slot) -> bool {
        slot.queue.is_some() && slot.pushed_in < self.sweep.number
    }
}

/// The deletions in progress, the first of them under way, and the scheduled deletions.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// The deletions, each with the connection that waits for its end.
    pub(super) queue: VecDeque<(Sweep, Option<ConnId>)>,
    scheduled: BTreeMap<Arc<[u8]>, (Moment, Duration)>,
    by_time: BTreeSet<(Moment, Arc<[u8]>)>,
    /// The bytes of the scheduled prefixes, with [`SCHEDULED_BYTES`] more for each.
    pub(super) scheduled_bytes: usize,
}

impl Sweeps {
    /// Whether the connection waits for the end of a deletion.
    pub(super) fn is_awaited_by(&self, conn: ConnId) -> bool {
        self.queue.iter().any(|(_, asker)| *asker == Some(conn))
    }

    /// The connection has ended.
    pub(super) fn forget(&mut self, conn: ConnId) {
        for (_, asker) in &mut self.queue {
            asker.take_if(|asker| *asker == conn);
        }
    }

    /// Whether there is room for this prefix among the scheduled ones.
    pub(super) fn has_room_for(&self, prefix: &[u8]) -> bool {
        self.scheduled.len() < SCHEDULED_MAX || self.scheduled.contains_key(prefix)
    }

    /// Schedules the deletion of a prefix, replacing an earlier schedule.
    pub(super) fn schedule(&mut self, prefix: &[u8], now: Moment, delay: Duration) {
        self.unschedule(prefix);
        let prefix: Arc<[u8]> = prefix.into();
        let at = now + delay;
        self.scheduled_bytes += SCHEDULED_BYTES + prefix.len();
        self.by_time.insert((at, Arc::clone(&prefix)));
        self.scheduled.insert(prefix, (at, delay));
    }

    /// A prefix is not scheduled any more; `false` if it was not.
    pub(super) fn unschedule(&mut self, prefix: &[u8]) -> bool {
        let Some((prefix, (at, _))) = self.scheduled.remove_entry(prefix) else {
            return false;
        };
        self.scheduled_bytes -= SCHEDULED_BYTES + prefix.len();
        self.by_time.remove(&(at, prefix));
        true
    }

    /// The scheduled prefix with the earliest time.
    pub(super) fn next_scheduled(&self) -> Option<&(Moment, Arc<[u8]>)> {
        self.by_time.first()
    }

    /// Writes the scheduled deletions, for a snapshot of the journal.
    pub(super) fn write(&self, writer: &mut BatchWriter) {
        for (prefix, (_, delay)) in &self.scheduled {
            // It was received as a `u32`.
            let delay_millis = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
            writer.push(Effect::Schedule {
                prefix,
                delay_millis,
            });
        }
    }
}
