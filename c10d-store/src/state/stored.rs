//! A value with its last two writes.

use std::num::NonZeroU64;

use crate::moment::Moment;
use crate::snapshot::ConnectionId;
use crate::stored_value::Value;

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
