//! Bytes that are not the protocol.

use std::fmt;

use super::opcode::Opcode;

/// Why a peer's bytes were refused, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireError {
    /// The command, when its byte was a known one.
    pub opcode: Option<Opcode>,
    /// Bytes from the start of the request to the place of the fault.
    pub offset: usize,
    /// What is wrong.
    pub kind: WireErrorKind,
}

/// What is wrong with a peer's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireErrorKind {
    /// The command byte is none of the protocol's.
    UnknownOpcode(u8),
    /// The first command is not VALIDATE: a port scanner, another protocol.
    NotGreeted(u8),
    /// VALIDATE with another word than the protocol's.
    WrongMagic(u32),
    /// VALIDATE after the first command.
    SecondValidate,
    /// A key is longer than the limit.
    KeyTooLong {
        /// The length announced.
        bytes: u64,
        /// The limit.
        bytes_max: usize,
    },
    /// A value is longer than the limit.
    ValueTooLong {
        /// The length announced.
        bytes: u64,
        /// The limit.
        bytes_max: usize,
    },
    /// A request names more keys than the limit.
    TooManyKeys {
        /// The count announced.
        keys: u64,
        /// The limit.
        keys_max: usize,
    },
    /// A request as a whole is longer than the limit.
    RequestTooLong {
        /// Its length, as far as it is known.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode {
            Some(opcode) => write!(f, "{opcode:?}, byte {}: ", self.offset)?,
            None => write!(f, "byte {}: ", self.offset)?,
        }
        match self.kind {
            WireErrorKind::UnknownOpcode(byte) => write!(f, "unknown command 0x{byte:02x}"),
            WireErrorKind::NotGreeted(byte) => {
                write!(f, "first byte 0x{byte:02x} where VALIDATE (0x00) belongs")
            }
            WireErrorKind::WrongMagic(magic) => write!(f, "wrong validation word 0x{magic:08x}"),
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
            WireErrorKind::RequestTooLong { bytes, bytes_max } => {
                write!(f, "request of at least {bytes} bytes, limit {bytes_max}")
            }
        }
    }
}

impl std::error::Error for WireError {}
