//! The keys and the known value of a pending WAIT_GET or WAIT_CHANGE.

use std::collections::HashSet;

use crate::known::Known;
use crate::message::{Keys, Payload};
use crate::stored_value::Value;

/// Keys whose values are wanted at the same moment, in the order of the request. They may repeat.
#[derive(Debug)]
pub(in crate::state) struct WantedKeys {
    keys: Box<[Box<[u8]>]>,
    /// The position of the first occurrence of each key, if that is known.
    distinct: Option<Box<[u32]>>,
    /// The bytes of the keys, with [`KEY_BYTES`] more for each.
    bytes: usize,
}

/// The memory of a key besides its bytes, including the allocator's part.
const KEY_BYTES: usize = 48;

impl WantedKeys {
    pub(super) fn new(keys: Keys<'_>) -> Self {
        Self {
            bytes: keys.iter().map(|key| KEY_BYTES + key.len()).sum(),
            keys: keys.iter().map(Box::from).collect(),
            distinct: None,
        }
    }

    /// The memory that it takes.
    pub(in crate::state) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Every key, in the order of the request.
    pub(super) fn all(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|key| &**key)
    }

    /// Finds the distinct keys, so that a wait that is checked again and again costs a repeated key once. Most waits
    /// are checked once, after their last missing key was written.
    pub(super) fn find_distinct(&mut self) {
        if self.distinct.is_some() {
            return;
        }
        let mut seen = HashSet::with_capacity(self.keys.len());
        let positions = (0_u32..).zip(&self.keys);
        self.distinct = Some(
            positions
                .filter(|(_, key)| seen.insert(&***key))
                .map(|(position, _)| position)
                .collect(),
        );
    }

    /// Returns each key, at least once.
    pub(super) fn distinct(&self) -> impl Iterator<Item = &[u8]> {
        // One of the two is always empty: chains two iterator types without an allocation.
        let (positions, all) = match &self.distinct {
            Some(positions) => (&**positions, &[][..]),
            None => (&[][..], &*self.keys),
        };
        let distinct = positions.iter().map(|at| &*self.keys[*at as usize]);
        distinct.chain(all.iter().map(|key| &**key))
    }

    /// The number of keys that [`distinct`](Self::distinct) returns.
    pub(super) fn distinct_len(&self) -> usize {
        self.distinct
            .as_ref()
            .map_or(self.keys.len(), |it| it.len())
    }
}

/// An owned [`Known`]. Waits with the same known value share one, so that a thousand of them cost one
/// copy of the bytes and one comparison for each write.
#[derive(Debug)]
pub(in crate::state) struct KnownValue {
    offset: usize,
    bytes: Value,
    length: Option<usize>,
}

impl KnownValue {
    pub(super) fn new(offset: usize, bytes: Payload<'_>, length: Option<usize>) -> Self {
        Self {
            offset,
            bytes: bytes.into_value(),
            length,
        }
    }

    pub(in crate::state) fn as_known(&self) -> Known<'_> {
        Known::new(self.offset, self.bytes.as_bytes(), self.length)
    }
}
