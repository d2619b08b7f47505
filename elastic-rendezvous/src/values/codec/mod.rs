//! The encoding of the state: a Python pickle, in base64 in the store.
//!
//! [`encode`] writes a pickle byte for byte as PyTorch does. [`decode`] accepts only what PyTorch writes and
//! executes nothing: a pickle is a program, and any client of the store can write one. [`to_text`] and
//! [`from_text`] do the same for the base64 text in the store.
//!
//! Unlike PyTorch, unknown attributes are dropped.

mod calendar;
mod decode;
mod encode;
mod error;
mod pickle;
mod pickler;
mod text;
mod unpickler;
mod value;
mod watch;

pub use decode::decode;
pub use encode::encode;
pub use error::{CodecLimits, CorruptState, CorruptStateKind};
pub use text::{SENTINEL, from_base64, from_text, to_base64, to_text, watch_ranges};
pub use watch::WatchRanges;
