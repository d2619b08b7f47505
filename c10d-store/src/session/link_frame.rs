//! The frames of a link: pieces of the stream, each with an acknowledgment.

use byteorder::{ByteOrder, LittleEndian};

/// The length of a head: the number of bytes of the stream that follow (u32), and how many bytes of the other
/// direction have been received (u64).
pub(super) const HEAD_BYTES: usize = 12;

/// The head of a link frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: u32,
    /// The number of bytes of the stream that the sender has received so far.
    pub(super) received: u64,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        LittleEndian::write_u32(&mut bytes[..4], self.length);
        LittleEndian::write_u64(&mut bytes[4..], self.received);
        bytes
    }
}

/// The progress in the frames of one link.
#[derive(Debug, Default)]
pub(super) struct LinkReader {
    /// The part of the next head that has arrived.
    head: [u8; HEAD_BYTES],
    head_bytes: u8,
    /// Bytes of the stream left in the current frame.
    left: u32,
}

/// An item that a link delivers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivered<'a> {
    /// A head: how many bytes the peer has received.
    Acknowledgment(u64),
    /// The next bytes of the stream.
    Bytes(&'a [u8]),
}

impl LinkReader {
    /// Takes the next item from the front of `bytes`; `None` if they are used up.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Delivered<'a>> {
        if bytes.is_empty() {
            return None;
        }
        if self.left > 0 {
            let (now, later) = bytes.split_at((self.left as usize).min(bytes.len()));
            *bytes = later;
            self.left -= now.len() as u32;
            return Some(Delivered::Bytes(now));
        }
        let had = usize::from(self.head_bytes);
        let (now, later) = bytes.split_at((HEAD_BYTES - had).min(bytes.len()));
        *bytes = later;
        self.head[had..had + now.len()].copy_from_slice(now);
        self.head_bytes += now.len() as u8;
        if had + now.len() < HEAD_BYTES {
            return None;
        }
        self.head_bytes = 0;
        self.left = LittleEndian::read_u32(&self.head[..4]);
        Some(Delivered::Acknowledgment(LittleEndian::read_u64(
            &self.head[4..],
        )))
    }
}
