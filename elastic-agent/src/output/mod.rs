//! Shows the output of workers on the console.
//!
//! Only reads log files: workers write them.

mod console;
mod echo;
mod last_bytes;
mod lines;
mod source;

pub use console::Console;
pub(crate) use echo::{Echo, Sources};
pub(crate) use last_bytes::{LAST_BYTES_MAX, LastBytes};
pub(crate) use lines::LineSplitter;
pub(crate) use source::{CapturedPipe, FollowedFile, LineCopy};
