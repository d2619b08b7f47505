//! The known values of waits for a change.

use crate::known::Known;
use crate::message::Payload;
use crate::stored_value::Value;

/// An owned [`Known`]. Waits with the same known value share one, so that a thousand of them cost one
/// copy of the bytes and one comparison for each write.
#[derive(Debug)]
pub(super) struct KnownValue {
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

    pub(super) fn as_known(&self) -> Known<'_> {
        Known::new(self.offset, self.bytes.as_bytes(), self.length)
    }
}
