//! The wire format, specified in docs/spec/wire.md. Pure; the byte order is handled here only.

mod blob;
pub mod capability;
mod error;
mod frame;
mod handshake;
mod opcode;
mod reply;
#[cfg(feature = "extensions")]
mod reply_scan;
mod request;

pub(crate) use blob::Blobs;
pub use error::{WireError, WireErrorKind};
pub use frame::ANNOUNCEMENT_BYTES_MAX;
pub(crate) use frame::{Frame, FrameScan, Progress};
pub(crate) use handshake::REFUSED_NONCE;
pub use handshake::{CAPABILITY_MASK, CAPABILITY_NONCE, REFUSAL_NONCE, VALIDATION_MAGIC};
pub use opcode::Opcode;
pub(crate) use reply::{
    ADDED, CHECK_NOT_READY, CHECK_READY, ENDED_BY_SILENCE, EXCHANGED, FULL, KEPT_ALIVE,
    NOT_A_NUMBER, NOT_EXCHANGED, NOT_OWNED, OWNED, STOP_WAITING, TOO_MANY_OWNED, WAIT_CANCELED,
    encode_reply, read_i64, read_u32, read_u64,
};
#[cfg(feature = "extensions")]
pub use reply_scan::{NotAReply, ReplyScan};
pub(crate) use request::WORKER_COUNT_KEY;
pub use request::{PAYLOAD_KEY_PREFIX, RequestBuf};
#[cfg(feature = "extensions")]
pub(crate) use {
    handshake::{are_capabilities, reply_to_ping, without_capabilities},
    opcode::HELLO_BYTES,
};
