//! Protocol errors in received bytes.

use std::fmt;

use super::opcode::Opcode;

/// A protocol error in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireError {
    /// The command; `None` if its byte is unknown or has not been read.
    pub opcode: Option<Opcode>,
    /// The byte offset of the error in the request.
    pub offset: usize,
    /// The kind of the error.
    pub kind: WireErrorKind,
}

/// The first byte of a TLS connection: docs/spec/handshake.md, SEC 6.
const TLS: u8 = 0x16;

/// The way in which a request breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireErrorKind {
    /// The command byte is unknown.
    UnknownOpcode(u8),
    /// The first command is not VALIDATE, for instance from a port scanner or another protocol.
    HandshakeMissing(u8),
    /// VALIDATE has the wrong magic number.
    WrongMagic(u32),
    /// VALIDATE is not the first command.
    SecondValidate,
    /// A key is longer than the limit.
    KeyTooLong {
        /// The announced length.
        bytes: u64,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// A value is longer than the limit.
    ValueTooLong {
        /// The announced length.
        bytes: u64,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// A request has more keys than the limit.
    TooManyKeys {
        /// The announced count.
        keys: u64,
        /// The most keys.
        keys_max: usize,
    },
    /// A QUEUE_TAKE asks for no element.
    NothingToTake,
    /// A DELETE_PREFIX is for all names.
    EmptyPrefix,
    /// A request as a whole is longer than the limit.
    RequestTooLong {
        /// The length as far as it is known.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == WireErrorKind::HandshakeMissing(TLS) {
            return f.write_str("the client uses TLS, but this server has no secret");
        }
        match self.opcode {
            Some(opcode) => write!(f, "{opcode:?}, byte {}: ", self.offset)?,
            None => write!(f, "byte {}: ", self.offset)?,
        }
        match self.kind {
            WireErrorKind::UnknownOpcode(byte) => write!(f, "unknown command 0x{byte:02x}"),
            WireErrorKind::HandshakeMissing(byte) => {
                write!(f, "first byte is 0x{byte:02x}, expected VALIDATE (0x00)")
            }
            WireErrorKind::WrongMagic(magic) => {
                write!(f, "wrong magic number 0x{magic:08x} in VALIDATE")
            }
            WireErrorKind::SecondValidate => write!(f, "second VALIDATE"),
            WireErrorKind::KeyTooLong { bytes, bytes_max } => {
                write!(f, "key of {bytes} bytes, limit {bytes_max}")
            }
            WireErrorKind::ValueTooLong { bytes, bytes_max } => {
                write!(f, "value of {bytes} bytes, limit {bytes_max}")
            }
            WireErrorKind::TooManyKeys { keys, keys_max } => {
                write!(f, "{keys} keys, limit {keys_max}")
            }
            WireErrorKind::NothingToTake => write!(f, "maximum of 0 elements, at least 1 expected"),
            WireErrorKind::EmptyPrefix => write!(f, "empty prefix, which would delete all names"),
            WireErrorKind::RequestTooLong { bytes, bytes_max } => {
                write!(f, "request of at least {bytes} bytes, limit {bytes_max}")
            }
        }
    }
}

impl std::error::Error for WireError {}
