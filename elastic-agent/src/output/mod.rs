//! From what workers write to what the console shows.
//!
//! Log files are written by the workers themselves; here they are only read. Does not know where
//! logs are (`logs`) or what a worker is (`worker`).

mod console;
mod echo;
mod last_bytes;
mod lines;
mod source;

pub use console::Console;
pub(crate) use echo::{Echo, Sources};
pub(crate) use last_bytes::{LAST_BYTES_MAX, LastBytes};
pub(crate) use source::{CapturedPipe, FollowedFile, LineCopy};
