//! Where the output of workers is kept.
//!
//! Knows no processes, and does not write logs: workers do.

mod directory;
mod prefix;
mod routing;
mod streams;

pub use directory::{FilteredLog, LogDirectory, LogDirectoryError, RoundLogs};
pub use prefix::LinePrefix;
pub use routing::{Destination, LogOptions, WorkerLogs, parse_line_filters};
pub use streams::{StreamMap, StreamMapError, Streams};
