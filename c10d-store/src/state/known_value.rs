//! What those who wait for a change know of a value, kept for as long as they wait.

use crate::known::Known;
use crate::message::Payload;
use crate::stored_value::Value;

/// An owned [`Known`]. Waiters that know the same share one, so that a thousand of them cost one copy
/// of the bytes, and one comparison for each write.
#[derive(Debug)]
pub(super) struct KnownValue {
    offset: usize,
    bytes: Value,
    length: Option<usize>,
}

impl KnownValue {
    /// Takes over what a request brought.
    pub(super) fn new(offset: usize, bytes: Payload<'_>, length: Option<usize>) -> Self {
        Self {
            offset,
            bytes: bytes.into_value(),
            length,
        }
    }

    /// The knowledge.
    pub(super) fn as_known(&self) -> Known<'_> {
        Known::new(self.offset, self.bytes.as_bytes(), self.length)
    }
}
