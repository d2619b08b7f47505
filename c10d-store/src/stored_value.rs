//! A stored value: owned while short, shared while long.

use std::sync::Arc;

/// From this length on a value is shared with the connections that are sending it instead of being
/// copied for each. Below it, one copy costs less than the bookkeeping and the second slice of a
/// vectored write.
pub(crate) const SHARED_VALUE_BYTES_MIN: usize = 16 << 10;

/// The bytes of one value or queue element.
#[derive(Clone)]
pub(crate) struct Value(Repr);

impl std::fmt::Debug for Value {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value")
            .field("bytes", &self.as_bytes().len())
            .finish()
    }
}

#[derive(Clone)]
enum Repr {
    Short(Vec<u8>),
    /// The value is `bytes[start..]`: a long value keeps the buffer that it was received into,
    /// command and key in front of it included, as copying megabytes to shed a few bytes is a bad
    /// trade.
    Long {
        bytes: Arc<Vec<u8>>,
        start: usize,
    },
}

impl Value {
    /// Takes over a received buffer whose tail, from `start` on, is the value.
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

    /// The bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Short(bytes) => bytes,
            Repr::Long { bytes, start } => &bytes[*start..],
        }
    }

    /// The allocation and the offset of a value that is worth sharing; `None` for a short one.
    pub(crate) fn shared(&self) -> Option<(&Arc<Vec<u8>>, usize)> {
        match &self.0 {
            Repr::Short(_) => None,
            Repr::Long { bytes, start } => Some((bytes, *start)),
        }
    }

    /// Replaces the content, reusing the allocation of a short value unless most of it would be
    /// waste.
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

    /// Appends in amortized linear time, unless the value is being sent at this moment: then the
    /// sender keeps the old bytes and this value gets a copy.
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

    /// The buffer of a value that is to be a short one, for writing a number in place.
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
    fn a_long_value_is_its_buffers_tail_and_is_not_copied() {
        let buffer = vec![9; SHARED_VALUE_BYTES_MIN + 5];
        let address = buffer.as_ptr();
        let value = Value::from_tail(buffer, 5);
        assert_eq!(value.as_bytes().len(), SHARED_VALUE_BYTES_MIN);
        let (shared, start) = value.shared().expect("it is long");
        assert_eq!((shared.as_ptr(), start), (address, 5));
    }

    #[test]
    fn appending_while_the_value_is_being_sent_leaves_the_sent_bytes_alone() {
        let mut value = Value::from(&[1; SHARED_VALUE_BYTES_MIN][..]);
        let in_flight = Arc::clone(value.shared().expect("it is long").0);
        value.append(b"more");
        assert_eq!(in_flight.len(), SHARED_VALUE_BYTES_MIN);
        assert_eq!(value.as_bytes().len(), SHARED_VALUE_BYTES_MIN + 4);
    }

    #[test]
    fn values_move_between_short_and_long_as_they_change() {
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
