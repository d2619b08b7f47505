//! The words of the handshake: the magic of VALIDATE, and the capabilities in the answer to PING.

/// The word that VALIDATE carries (docs/wire.md, section 1).
pub const VALIDATION_MAGIC: u32 = 0x3C85_F7CE;

/// The nonce by which a client asks for the server's capabilities in its PING (docs/wire.md,
/// section 9). A PyTorch server echoes it, which reads as "none". PyTorch's clients send their
/// process id, which on Linux is below 2^22.
pub const CAPABILITY_NONCE: u32 = 0xC10D_0000;

/// The bits of a PING answer to [`CAPABILITY_NONCE`] that hold capabilities.
pub const CAPABILITY_MASK: u32 = 0x0000_FFFF;

/// The server knows WAIT_GET (0x80).
pub const CAPABILITY_WAIT_GET: u32 = 1 << 0;

/// The server knows WAIT_CHANGE (0x81).
pub const CAPABILITY_WAIT_CHANGE: u32 = 1 << 1;

/// The server knows TRY_ADD (0x82).
pub const CAPABILITY_TRY_ADD: u32 = 1 << 2;

/// The server knows COMPARE_EXCHANGE (0x83).
pub const CAPABILITY_COMPARE_EXCHANGE: u32 = 1 << 3;

/// All that this crate's server can do.
pub const CAPABILITIES: u32 =
    CAPABILITY_WAIT_GET | CAPABILITY_WAIT_CHANGE | CAPABILITY_TRY_ADD | CAPABILITY_COMPARE_EXCHANGE;

/// What this crate's server answers to a PING.
pub(crate) const fn answer_to_ping(nonce: u32) -> u32 {
    if nonce == CAPABILITY_NONCE {
        CAPABILITY_NONCE | CAPABILITIES
    } else {
        nonce
    }
}
