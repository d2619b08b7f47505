//! The state as the bytes that all nodes read and replace: Python's pickle, in base64 as stored.
//!
//! PyTorch stores a pickle, so whoever wants to be in one rendezvous with it has to write and read
//! pickles. [`encode`] writes what PyTorch would, byte for byte. [`decode`] reads what PyTorch writes
//! and nothing else: a pickle is a program, and everyone who reaches the store can put one there.
//! [`to_text`] and [`from_text`] are the same for the text in the store.
//!
//! Knows no store, and not what a state means. Does not keep attributes that it does not know, which
//! PyTorch would.

mod calendar;
mod decode;
mod encode;
mod error;
mod limits;
mod names;
mod opcode;
mod pickler;
mod text;
mod unpickler;
mod value;
mod watch;

pub use decode::decode;
pub use encode::encode;
pub use error::{CorruptState, CorruptStateKind};
pub use limits::CodecLimits;
pub use text::{SENTINEL, from_base64, from_text, to_base64, to_text, watch_ranges};
pub use watch::WatchRanges;
