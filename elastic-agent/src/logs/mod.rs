//! Where the output of workers goes: log directories, and which stream goes into which file.
//!
//! Workers write the files themselves.

mod directory;
mod routing;

pub use directory::{FilteredLog, LogDirectory, LogDirectoryError, RoundLogs};
pub use routing::{
    Destination, LinePrefix, LogOptions, StreamMap, StreamMapError, Streams, WorkerLogs,
    parse_line_filters,
};
