//! Copies all slots in slices: a snapshot for observers, or one for the journal.

use std::sync::Arc;

use super::image::KeysImage;
use crate::journal::batch::{BatchWriter, CHUNK_BYTES, Effect};
use crate::state::slot::{Slot, SlotMap};
use crate::stored_value::Value;

/// Copying this many bytes of a snapshot counts as much as visiting a slot.
const BYTES_PER_VISIT: usize = 1024;

/// A snapshot in progress.
///
/// It visits the slots from the last one down. A removal moves the last slot down into the gap, so an unvisited slot
/// stays below `left`; a visited slot carries the snapshot's number and is not copied twice. Slots that change places
/// are copied first.
#[derive(Debug)]
pub(in crate::state) struct Copying {
    target: Target,
    /// The slots with a smaller index have not been visited.
    left: usize,
}

/// Whom a snapshot is for.
#[derive(Debug)]
enum Target {
    /// A snapshot for observers.
    Image { image: KeysImage, keys_max: usize },
    /// The journal: everything.
    Chunks(Chunks),
}

/// The finished chunks of a snapshot for the journal, and the one in progress.
#[derive(Debug)]
struct Chunks {
    position: u64,
    writer: BatchWriter,
    finished: Vec<Vec<u8>>,
}

impl Copying {
    /// Starts a copy of this many slots for observers, with at most `keys_max` keys and as many queues.
    pub(in crate::state) const fn for_observers(
        slots: usize,
        image: KeysImage,
        keys_max: usize,
    ) -> Self {
        Self {
            target: Target::Image { image, keys_max },
            left: slots,
        }
    }

    /// Starts a copy of this many slots for the journal, at this position and after everything that is already written.
    pub(in crate::state) const fn for_journal(
        slots: usize,
        position: u64,
        writer: BatchWriter,
    ) -> Self {
        Self {
            target: Target::Chunks(Chunks {
                position,
                writer,
                finished: Vec::new(),
            }),
            left: slots,
        }
    }

    /// The complete copy for observers.
    pub(in crate::state) fn into_image(self) -> Option<KeysImage> {
        match self.target {
            Target::Image { image, .. } => Some(image),
            Target::Chunks(_) => None,
        }
    }

    /// Takes the finished chunks of a copy for the journal; with `is_done`, the last one as well. `None` for observers.
    pub(in crate::state) fn take_chunks(&mut self, is_done: bool) -> Option<Vec<Vec<u8>>> {
        let Target::Chunks(chunks) = &mut self.target else {
            return None;
        };
        if is_done && !chunks.writer.is_empty() {
            chunks.finish_chunk();
        }
        Some(std::mem::take(&mut chunks.finished))
    }

    /// Copies slots until the budget is used up or all are copied. Returns whether all are.
    pub(in crate::state) fn visit_slots(
        &mut self,
        map: &mut SlotMap,
        snapshot: u32,
        budget: &mut usize,
    ) -> bool {
        self.left = self.left.min(map.len());
        while self.left > 0 {
            if *budget == 0 {
                return false;
            }
            self.left -= 1;
            let mut cost = 1;
            let (key, slot) = map.at_mut(self.left);
            if matches!(self.target, Target::Chunks(_)) {
                cost += slot.bytes() / BYTES_PER_VISIT;
            }
            self.copy(key, slot, snapshot);
            *budget = budget.saturating_sub(cost);
        }
        true
    }

    #[cold]
    pub(in crate::state) fn copy(&mut self, key: &Arc<[u8]>, slot: &mut Slot, snapshot: u32) {
        if slot.copied_in == snapshot {
            return;
        }
        slot.copied_in = snapshot;
        match &mut self.target {
            Target::Image { image, keys_max } => copy_into_image(image, *keys_max, key, slot),
            Target::Chunks(chunks) => chunks.copy(key, slot),
        }
    }
}

fn copy_into_image(image: &mut KeysImage, keys_max: usize, key: &Arc<[u8]>, slot: &Slot) {
    if let Some(stored) = &slot.stored {
        if image.keys.len() < keys_max {
            image.push(key, stored);
        } else {
            image.left_out += 1;
        }
    }
    if let Some(queue) = &slot.queue {
        if image.queues.len() < keys_max {
            image.queues.push((Arc::clone(key), queue.len()));
        } else {
            image.left_out += 1;
        }
    }
}

impl Chunks {
    fn copy(&mut self, key: &[u8], slot: &Slot) {
        let value = slot.value().map(Value::as_bytes);
        let value = value.map(|value| Effect::Put { key, value });
        let ownership = slot.ownership.as_ref().map(|it| it.effect(key));
        let elements = slot.queue.iter().flat_map(|queue| queue.iter());
        let elements = elements.map(Value::as_bytes);
        let elements = elements.map(|element| Effect::Push { key, element });
        for effect in value.into_iter().chain(ownership).chain(elements) {
            self.writer.push(effect);
            if self.writer.len() >= CHUNK_BYTES {
                self.finish_chunk();
            }
        }
    }

    fn finish_chunk(&mut self) {
        let memory = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8);
        self.finished
            .push(self.writer.finish(self.position, memory));
    }
}
