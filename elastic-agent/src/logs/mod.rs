//! The destinations of the output of workers: log directories, and the file of each stream.
//!
//! Workers write the files themselves.

mod directory;
mod routing;

pub use directory::{FilteredLog, LogDirectory, LogDirectoryError, RoundLogs};
pub use routing::{
    Destination, LinePrefix, LogOptions, StreamMap, StreamMapError, Streams, WorkerLogs,
    parse_line_filters,
};
