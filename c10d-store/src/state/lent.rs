//! Long values that replies may still hold when they are not stored any more: replaced, deleted, taken from a queue, or made
//! for a reply. They take memory until the last peer has read them. Pure.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use crate::stored_value::Value;

/// Fewer values are not worth a check.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Lent {
    values: Vec<Weak<Vec<u8>>>,
    /// The memory of these values at the last look.
    bytes: usize,
    /// How many values there were after the last check.
    left: usize,
}

impl Lent {
    /// A value is not stored any more.
    #[inline]
    pub(super) fn add(&mut self, value: &Value) {
        if let Some((bytes, _)) = value.shared()
            && Arc::strong_count(bytes) > 1
        {
            self.add_held(bytes);
        }
    }

    /// Adds a value that a reply holds, or will hold.
    pub(super) fn add_held(&mut self, bytes: &Arc<Vec<u8>>) {
        if self.values.len() >= FEW + 2 * self.left {
            self.forget_read();
        }
        self.bytes += bytes.capacity();
        self.values.push(Arc::downgrade(bytes));
    }

    /// The memory of the values that are held, or were at the last look.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The addresses of these values, to recognize them in replies.
    pub(super) fn values(&self) -> HashSet<*const Vec<u8>> {
        self.values.iter().map(Weak::as_ptr).collect()
    }

    /// Drops the values that no reply holds.
    pub(super) fn forget_read(&mut self) {
        self.bytes = 0;
        let bytes = &mut self.bytes;
        self.values.retain(|value| {
            let held = value.upgrade();
            *bytes += held.as_ref().map_or(0, |held| held.capacity());
            held.is_some()
        });
        self.left = self.values.len();
        self.values.shrink_to(FEW + 2 * self.left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_while_somebody_holds_it() {
        let mut lent = Lent::default();
        let (held, read) = (
            Value::from(&[7; 1 << 20][..]),
            Value::from(&[8; 1 << 20][..]),
        );
        lent.add(&held);
        assert_eq!(lent.bytes(), 0, "nobody but the store");
        let reply = held.clone();
        for value in [held, read.clone()] {
            lent.add(&value);
        }
        drop(read);
        assert_eq!(lent.bytes(), 2 << 20);
        lent.forget_read();
        assert_eq!(lent.bytes(), 1 << 20);
        drop(reply);
        for number in 0..10 * FEW {
            let value = Value::from(&vec![7; 1 << 15][..]);
            let _reply = value.clone();
            lent.add(&value);
            assert!(lent.bytes() <= (FEW + 1) << 15 | 1 << 20, "{number}");
        }
    }
}
