//! Sequences of length-prefixed byte strings.

use byteorder::{ByteOrder, LittleEndian};

/// Bytes in a length word.
pub(super) const LENGTH_BYTES: usize = 8;

/// An iterator over blobs (`u64` length, then the bytes) whose lengths have been checked.
#[derive(Clone, Copy, Default)]
pub(crate) struct Blobs<'a> {
    /// Invariant: exactly `count` whole blobs.
    bytes: &'a [u8],
    count: usize,
}

impl std::fmt::Debug for Blobs<'_> {
    /// Lengths only: the bytes can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blobs")
            .field("count", &self.count)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

impl<'a> Blobs<'a> {
    /// `bytes` must be exactly `count` blobs, as checked by a [`FrameScan`](super::FrameScan).
    pub(super) const fn checked(bytes: &'a [u8], count: usize) -> Self {
        Self { bytes, count }
    }

    /// The number of blobs left.
    pub(crate) const fn left(&self) -> usize {
        self.count
    }
}

impl<'a> Iterator for Blobs<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.count = self.count.checked_sub(1)?;
        let length = usize::try_from(LittleEndian::read_u64(self.bytes)).ok()?;
        let (blob, rest) = self.bytes[LENGTH_BYTES..].split_at(length);
        self.bytes = rest;
        Some(blob)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}
