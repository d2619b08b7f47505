//! A stored value: owned while short, shared while long.

use std::sync::Arc;

/// Values of at least this many bytes are shared with the connections that send them instead of being
/// copied for each. A copy of a shorter value costs less than the bookkeeping and the second slice of
/// a vectored write.
pub(crate) const SHARED_VALUE_BYTES_MIN: usize = 16 << 10;

/// The shortest value that is shared if it is sent to many connections.
const SHARED_BY_MANY_BYTES_MIN: usize = 1 << 10;

/// The bytes of one value or queue element.
#[derive(Clone)]
pub struct Value(Repr);

impl std::fmt::Debug for Value {
    /// Lengths only: the bytes can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value")
            .field("bytes", &self.as_bytes().len())
            .finish()
    }
}

#[derive(Clone)]
enum Repr {
    Short(Vec<u8>),
    /// The value is `bytes[start..]`: a long value keeps its receive buffer, including the command and
    /// key in front of it, since copying megabytes to save a few bytes is not worth it.
    Long {
        bytes: Arc<Vec<u8>>,
        start: usize,
    },
}

impl Value {
    /// Takes a receive buffer whose tail from `start` is the value.
    pub(crate) fn from_tail(mut bytes: Vec<u8>, start: usize) -> Self {
        if bytes.len() - start < SHARED_VALUE_BYTES_MIN {
            bytes.drain(..start);
            return Self(Repr::Short(bytes));
        }
        Self(Repr::Long {
            bytes: Arc::new(bytes),
            start,
        })
    }

    /// Takes bytes that are sent to thousands of connections at a time. Shorter bytes are shared as well, and a relay
    /// gets one copy of shared bytes for all of its ranks.
    #[must_use]
    pub fn to_many(bytes: Vec<u8>) -> Self {
        if bytes.len() < SHARED_BY_MANY_BYTES_MIN {
            return Self(Repr::Short(bytes));
        }
        Self(Repr::Long {
            bytes: Arc::new(bytes),
            start: 0,
        })
    }

    /// Takes bytes that are shared already.
    pub(crate) const fn of_shared(bytes: Arc<Vec<u8>>) -> Self {
        Self(Repr::Long { bytes, start: 0 })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Short(bytes) => bytes,
            Repr::Long { bytes, start } => &bytes[*start..],
        }
    }

    /// The allocation and offset of a long value; `None` for a short value.
    pub(crate) fn shared(&self) -> Option<(&Arc<Vec<u8>>, usize)> {
        match &self.0 {
            Repr::Short(_) => None,
            Repr::Long { bytes, start } => Some((bytes, *start)),
        }
    }

    /// Replaces the content. Reuses the allocation of a short value unless most of it would be unused.
    pub(crate) fn assign(&mut self, new: &[u8]) {
        match &mut self.0 {
            Repr::Short(bytes)
                if new.len() < SHARED_VALUE_BYTES_MIN && bytes.capacity() / 4 <= new.len() + 64 =>
            {
                bytes.clear();
                bytes.extend_from_slice(new);
            }
            _ => *self = Self::from(new),
        }
    }

    /// Appends in amortized linear time, unless the value is being sent: then the sender keeps the old
    /// bytes, and this value becomes a copy.
    pub(crate) fn append(&mut self, more: &[u8]) {
        match &mut self.0 {
            Repr::Short(bytes) => {
                bytes.extend_from_slice(more);
                if bytes.len() >= SHARED_VALUE_BYTES_MIN {
                    *self = Self::from_tail(std::mem::take(bytes), 0);
                }
            }
            Repr::Long { bytes, .. } => Arc::make_mut(bytes).extend_from_slice(more),
        }
    }

    /// Makes this a short value and returns its buffer, for writing a number in place.
    pub(crate) fn make_short(&mut self) -> &mut Vec<u8> {
        if matches!(self.0, Repr::Long { .. }) {
            self.0 = Repr::Short(Vec::new());
        }
        match &mut self.0 {
            Repr::Short(bytes) => bytes,
            Repr::Long { .. } => unreachable!("a long value has just been replaced"),
        }
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::from_tail(bytes.to_vec(), 0)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Value {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_keeps_its_receive_buffer() {
        let buffer = vec![9; SHARED_VALUE_BYTES_MIN + 5];
        let address = buffer.as_ptr();
        let value = Value::from_tail(buffer, 5);
        assert_eq!(value.as_bytes().len(), SHARED_VALUE_BYTES_MIN);
        let (shared, start) = value.shared().expect("it is long");
        assert_eq!((shared.as_ptr(), start), (address, 5));
    }

    #[test]
    fn appending_does_not_change_bytes_being_sent() {
        let mut value = Value::from(&[1; SHARED_VALUE_BYTES_MIN][..]);
        let in_flight = Arc::clone(value.shared().expect("it is long").0);
        value.append(b"more");
        assert_eq!(in_flight.len(), SHARED_VALUE_BYTES_MIN);
        assert_eq!(value.as_bytes().len(), SHARED_VALUE_BYTES_MIN + 4);
    }

    #[test]
    fn a_changed_value_becomes_short_or_long() {
        let mut value = Value::from(&b"short"[..]);
        assert!(value.shared().is_none());
        value.append(&[2; SHARED_VALUE_BYTES_MIN]);
        assert!(value.shared().is_some());
        value.assign(b"short again");
        assert!(value.shared().is_none());
        assert_eq!(value.as_bytes(), b"short again");
        value.assign(&[3; SHARED_VALUE_BYTES_MIN]);
        assert!(value.shared().is_some());
        value.make_short().extend_from_slice(b"7");
        assert_eq!(value.as_bytes(), b"7");
    }
}
