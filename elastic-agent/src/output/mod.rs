//! Moves the output of workers to their log files and to the console.
//!
//! A stream that is only kept in a file is written by its worker, and does not pass here.

mod console;
mod echo;
mod keeping;
mod last_bytes;
mod lines;
mod log_writer;
mod pipe;
mod shown_log;
mod thread;
mod threads;
mod trail;

pub use console::Console;
pub(crate) use echo::Sources;
pub(crate) use last_bytes::{LAST_BYTES_MAX, LastBytes};
pub(crate) use lines::LineSplitter;
pub(crate) use log_writer::LoggedStream;
pub(crate) use pipe::CapturedPipe;
pub(crate) use shown_log::{LineCopy, ShownLog};
pub(crate) use threads::OutputThreads;
