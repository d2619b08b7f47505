//! Hashes keys and connection numbers.
//!
//! Keys are hashed with a secret that clients cannot know, because a client chooses its keys. The hasher of the standard
//! library is the same SipHash-1-3, but takes its input in pieces, which costs more than the hash of a key of usual length.
//! This hasher takes the key as a whole: for 14 bytes 90 instead of 220 instructions.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use siphasher::sip::SipHasher13;

/// The secret of one map.
#[derive(Clone, Copy)]
pub(super) struct KeyHash(u64, u64);

impl Default for KeyHash {
    /// A random secret.
    fn default() -> Self {
        let random = RandomState::new();
        Self(random.hash_one(0), random.hash_one(1))
    }
}

impl std::fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHash")
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher {
            secret: *self,
            hash: 0,
        }
    }
}

/// Hashes one byte slice.
pub(super) struct KeyHasher {
    secret: KeyHash,
    hash: u64,
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let KeyHash(first, second) = self.secret;
        self.hash = SipHasher13::new_with_keys(first ^ self.hash, second).hash(bytes);
    }

    /// The length of a slice, which is part of its hash anyway.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.hash
    }
}

/// The hash of maps by [`ConnId`](crate::message::ConnId).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_maps_have_different_secrets() {
        let hash_of = |secret: KeyHash| secret.hash_one(&b"key"[..]);
        assert_ne!(hash_of(KeyHash::default()), hash_of(KeyHash::default()));
        let secret = KeyHash::default();
        assert_ne!(secret.hash_one(&b""[..]), secret.hash_one(&b"\0"[..]));
    }
}
