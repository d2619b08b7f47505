//! The list that a group sends its members, as bytes that all replies share (docs/wire-extensions.md, MEMBERSHIP 4 and 12).

use std::sync::Arc;

use c10d_membership::codec::Encode;
use c10d_membership::list_change::encode_change;
use c10d_membership::{Attempt, Record};

use crate::stored_value::Value;

/// About the memory of a seat in a list besides its handle.
const SEAT_BYTES: usize = 96;

/// The newest list of a group, and those that most members have: that of the generation, and the last one that was
/// sent, whose attempt may have failed.
#[derive(Debug, Default)]
pub(super) struct SentLists {
    list: Option<Arc<Record>>,
    committed: Option<Arc<Record>>,
    last_sent: Option<Arc<Record>>,
    /// The list whole, and as what differs from the two others.
    whole: Option<Value>,
    change_of_committed: Option<Value>,
    change_of_last_sent: Option<Value>,
    records_bytes: usize,
}

impl SentLists {
    /// This list is sent from now on. `false` if it is already.
    pub(super) fn start(&mut self, list: &Arc<Record>, committed: Option<&Arc<Record>>) -> bool {
        let is_same = self
            .list
            .as_ref()
            .is_some_and(|it| it.attempt == list.attempt);
        if is_same {
            return false;
        }
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

    /// The bytes for a member that has the list of this attempt, and whether they were made now.
    pub(super) fn bytes(&mut self, base: Option<Attempt>) -> Option<(Value, bool)> {
        let list = self.list.as_ref()?;
        let is_base = |it: &&Arc<Record>| Some(it.attempt) == base;
        let (made, base) = if let Some(base) = self.committed.as_ref().filter(is_base) {
            (&mut self.change_of_committed, Some(base))
        } else if let Some(base) = self.last_sent.as_ref().filter(is_base) {
            (&mut self.change_of_last_sent, Some(base))
        } else {
            (&mut self.whole, None)
        };
        if let Some(made) = made {
            return Some((made.clone(), false));
        }
        let mut bytes = Vec::new();
        match base {
            Some(base) => encode_change(list, base, &mut bytes),
            None => list.encode(&mut bytes),
        }
        Some((made.insert(Value::from_tail(bytes, 0)).clone(), true))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let made = [
            &self.whole,
            &self.change_of_committed,
            &self.change_of_last_sent,
        ];
        let made = made.into_iter().flatten();
        self.records_bytes + made.map(|it| it.as_bytes().len()).sum::<usize>()
    }
}

fn bytes_of(list: &Record) -> usize {
    let handles = list.seats.iter().map(|seat| seat.handle.len());
    list.seats.len() * SEAT_BYTES + handles.sum::<usize>()
}
