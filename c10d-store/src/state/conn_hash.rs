//! Hashes connection numbers.

use std::hash::{BuildHasherDefault, Hasher};

/// For maps by [`ConnId`](crate::message::ConnId).
pub(super) type ConnHash = BuildHasherDefault<ConnHasher>;

/// Neighbouring slots hash to neighbouring places of a map, so that a walk over all connections finds their waits
/// in the order of memory. The server chooses the numbers, so clients cannot cause collisions.
#[derive(Debug, Default)]
pub(super) struct ConnHasher(u64);

/// The bits that choose the place; a map compares the upper ones before the numbers.
const PLACE_BITS: u32 = 57;

impl Hasher for ConnHasher {
    #[inline]
    fn write_u64(&mut self, conn: u64) {
        let place = conn & ((1 << 32) - 1);
        // The golden ratio spreads the numbers over the upper bits.
        let mixed = conn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (mixed >> PLACE_BITS) << PLACE_BITS | place;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
