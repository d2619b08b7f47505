//! The list that a group sends its members, as bytes that all replies share (docs/spec/wire-extensions.md, MEMBERSHIP 4 and 12).

use std::sync::Arc;

use c10d_store::groups::{GroupEffect, Value};

use crate::list_change::encode_list;
use crate::record::{Attempt, Record};

/// About the memory of a seat in a list besides its handle.
const SEAT_BYTES: usize = 96;

/// The newest list of a group, and the lists that most members have: the list of the generation, and the last list that
/// was sent, whose attempt may have failed.
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
