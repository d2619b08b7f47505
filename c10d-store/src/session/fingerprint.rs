//! The length and a hash of bytes, instead of a copy.

use byteorder::{ByteOrder, LittleEndian};

/// Mixes words; odd, and without a pattern.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

const WORD_BYTES: u64 = 8;

/// The length and a hash of some bytes; the same for any split of them. The hash detects overwritten values. It
/// does not detect values that were crafted to have the same hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Fingerprint {
    bytes: u64,
    hash: u64,
    /// The bytes after the last whole word.
    word: u64,
}

impl Fingerprint {
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        let of_word = (WORD_BYTES - self.bytes % WORD_BYTES) % WORD_BYTES;
        let (of_word, rest) = bytes.split_at(bytes.len().min(of_word as usize));
        of_word.iter().for_each(|byte| self.add_byte(*byte));
        let words = rest.chunks_exact(WORD_BYTES as usize);
        let left = words.remainder();
        for word in words {
            self.mix(LittleEndian::read_u64(word));
            self.bytes += WORD_BYTES;
        }
        left.iter().for_each(|byte| self.add_byte(*byte));
    }

    fn add_byte(&mut self, byte: u8) {
        self.word |= u64::from(byte) << (self.bytes % WORD_BYTES * 8);
        self.bytes += 1;
        if self.bytes.is_multiple_of(WORD_BYTES) {
            let word = std::mem::take(&mut self.word);
            self.mix(word);
        }
    }

    fn mix(&mut self, word: u64) {
        let product = u128::from(self.hash ^ word ^ FACTOR) * u128::from(FACTOR);
        self.hash = (product as u64) ^ ((product >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_split_of_the_same_bytes_is_the_same_and_others_are_not() {
        let bytes: Vec<u8> = (0..100).collect();
        let of = |pieces: &[&[u8]]| {
            let mut passed = Fingerprint::default();
            pieces.iter().for_each(|piece| passed.add(piece));
            passed
        };
        let whole = of(&[&bytes]);
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(of(&pieces), whole, "{first} {second}");
            }
        }
        for changed in 0..bytes.len() {
            let mut other = bytes.clone();
            other[changed] ^= 0x80;
            assert_ne!(of(&[&other]), whole, "{changed}");
        }
        assert_ne!(of(&[&bytes[1..]]), whole);
    }
}
