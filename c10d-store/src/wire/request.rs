//! Encodes requests, for clients.

use std::io::IoSlice;

use byteorder::{ByteOrder, LittleEndian};

use super::handshake::{CAPABILITY_NONCE, VALIDATION_MAGIC};
use super::opcode::{ANY_LENGTH, HELLO_BYTES, Opcode};
use crate::key::key_to_bytes;
use crate::known::Known;

/// The byte that clients put before every user key; it has no meaning for the server
/// (docs/spec/wire.md, section 4.1).
pub const PAYLOAD_KEY_PREFIX: u8 = b'/';

/// The key of the worker count; the only one without the `/` (docs/spec/wire.md, 7.2).
pub(crate) const WORKER_COUNT_KEY: &[u8] = b"init/";

/// Values of at least this many bytes are sent from the caller's memory instead of being copied.
const BORROWED_VALUE_BYTES_MIN: usize = 4096;

/// A buffer of one or more encoded requests.
///
/// Long values are borrowed, so that sending copies them only once, into the socket.
///
/// ```
/// use c10d_store::Opcode;
/// use c10d_store::unstable::{RequestBuf};
///
/// let mut request = RequestBuf::new();
/// request.opcode(Opcode::Add).user_key("step").i64(1);
/// let bytes = request.to_bytes();
/// assert_eq!(bytes[..9], [4, 5, 0, 0, 0, 0, 0, 0, 0]);
/// assert_eq!(&bytes[9..14], b"/step");
/// ```
#[derive(Default)]
pub struct RequestBuf<'v> {
    copied: Vec<u8>,
    /// Borrowed values, each with its position in `copied`.
    borrowed: Vec<(usize, &'v [u8])>,
}

impl std::fmt::Debug for RequestBuf<'_> {
    /// Lengths only: the bytes can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestBuf")
            .field("copied_bytes", &self.copied.len())
            .field("borrowed_values", &self.borrowed.len())
            .finish()
    }
}

impl<'v> RequestBuf<'v> {
    /// Creates an empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty buffer that reuses the allocation of `memory`.
    #[must_use]
    pub fn reusing(mut memory: Vec<u8>) -> Self {
        memory.clear();
        Self {
            copied: memory,
            borrowed: Vec::new(),
        }
    }

    /// Returns the buffer, so that [`reusing`](Self::reusing) can reuse its allocation.
    #[must_use]
    pub fn into_memory(self) -> Vec<u8> {
        self.copied
    }

    /// Appends the handshake: VALIDATE, and a PING that requests the server's capabilities.
    pub fn hello(&mut self) -> &mut Self {
        self.opcode(Opcode::Validate).u32(VALIDATION_MAGIC);
        self.opcode(Opcode::Ping).u32(CAPABILITY_NONCE)
    }

    /// Appends the handshake for servers without PING (PyTorch up to 2.4): VALIDATE and, since that
    /// has no reply, a [`mark`](Self::mark).
    pub fn plain_hello(&mut self) -> &mut Self {
        self.opcode(Opcode::Validate).u32(VALIDATION_MAGIC).mark()
    }

    /// Appends a CHECK of no keys: it changes nothing, every server supports it, and its reply, one zero
    /// byte, shows that every earlier request has been carried out.
    pub fn mark(&mut self) -> &mut Self {
        self.opcode(Opcode::Check).count(0)
    }

    /// Appends a command byte, which starts a request.
    pub fn opcode(&mut self, opcode: Opcode) -> &mut Self {
        self.copied.push(opcode as u8);
        self
    }

    /// Appends a user's key, with the `/` before it. See [`key_to_bytes`] for keys that are not text.
    pub fn user_key(&mut self, key: &str) -> &mut Self {
        let key = key_to_bytes(key);
        self.count(key.len() + 1);
        self.copied.push(PAYLOAD_KEY_PREFIX);
        self.copied.extend_from_slice(&key);
        self
    }

    /// Appends a count and the users' keys.
    pub fn user_keys(&mut self, keys: &[&str]) -> &mut Self {
        self.count(keys.len());
        for key in keys {
            self.user_key(key);
        }
        self
    }

    /// Appends a key without the `/`: only `init/` has none.
    pub fn raw_key(&mut self, key: &[u8]) -> &mut Self {
        self.count(key.len());
        self.copied.extend_from_slice(key);
        self
    }

    /// Appends a value with its length.
    pub fn value(&mut self, value: &'v [u8]) -> &mut Self {
        self.count(value.len());
        if value.len() < BORROWED_VALUE_BYTES_MIN {
            self.copied.extend_from_slice(value);
        } else {
            self.borrowed.push((self.copied.len(), value));
        }
        self
    }

    /// Appends a known value as the last three arguments of WAIT_CHANGE.
    pub fn known(&mut self, known: Known<'v>) -> &mut Self {
        self.u64(known.offset() as u64);
        self.u64(known.len().map_or(ANY_LENGTH, |len| len as u64));
        self.value(known.bytes())
    }

    /// Appends the argument of SESSION.
    pub(crate) fn hello_of_session(&mut self, hello: &[u8; HELLO_BYTES]) -> &mut Self {
        self.copied.extend_from_slice(hello);
        self
    }

    /// Appends a count.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u64(count as u64)
    }

    /// Appends a signed number.
    pub fn i64(&mut self, number: i64) -> &mut Self {
        let mut word = [0; 8];
        LittleEndian::write_i64(&mut word, number);
        self.copied.extend_from_slice(&word);
        self
    }

    /// Appends an unsigned number.
    pub fn u64(&mut self, number: u64) -> &mut Self {
        let mut word = [0; 8];
        LittleEndian::write_u64(&mut word, number);
        self.copied.extend_from_slice(&word);
        self
    }

    /// Appends a nonce or a magic number.
    pub fn u32(&mut self, number: u32) -> &mut Self {
        let mut word = [0; 4];
        LittleEndian::write_u32(&mut word, number);
        self.copied.extend_from_slice(&word);
        self
    }

    /// Returns the encoded bytes, for a vectored write.
    pub fn io_slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(2 * self.borrowed.len() + 1);
        let mut from = 0;
        for &(position, value) in &self.borrowed {
            slices.push(IoSlice::new(&self.copied[from..position]));
            slices.push(IoSlice::new(value));
            from = position;
        }
        if from < self.copied.len() {
            slices.push(IoSlice::new(&self.copied[from..]));
        }
        slices
    }

    /// Returns the encoded bytes in one piece; `None` if a value is borrowed.
    #[must_use]
    pub fn contiguous(&self) -> Option<&[u8]> {
        self.borrowed.is_empty().then_some(&self.copied)
    }

    /// Returns a copy of the encoded bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.io_slices()
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrowed_and_copied_values_make_the_same_bytes() {
        let long = vec![7; BORROWED_VALUE_BYTES_MIN];
        let mut request = RequestBuf::new();
        request.opcode(Opcode::MultiSet).count(2);
        request.user_key("a").value(&long).user_key("b").value(b"x");
        assert!(request.contiguous().is_none());

        let mut expected = vec![11, 2, 0, 0, 0, 0, 0, 0, 0];
        expected.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, b'/', b'a']);
        expected.extend_from_slice(&[0, 16, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&long);
        expected.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, b'/', b'b']);
        expected.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, b'x']);
        assert_eq!(request.to_bytes(), expected);
    }

    /// docs/spec/wire-extensions.md, CAPABILITY 1.
    #[test]
    fn the_handshake_is_the_documented_one() {
        let mut request = RequestBuf::new();
        request.hello();
        assert_eq!(
            request.to_bytes(),
            [0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 0, 0, 0x0d, 0xc1]
        );
        let mut request = RequestBuf::new();
        request.plain_hello();
        assert_eq!(
            request.to_bytes(),
            [0, 0xce, 0xf7, 0x85, 0x3c, 5, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}
