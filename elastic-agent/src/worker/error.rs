//! Why a group of workers could not be started.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Why no worker was started. Those that were already running are killed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The program of a worker could not be executed: most often it does not exist.
    #[error("cannot start {} as local rank {local_rank}: {source}", program.display())]
    Program {
        /// The program, by its path or its name.
        program: OsString,
        /// The local rank of the first worker that could not be started.
        local_rank: usize,
        /// The system's error.
        source: io::Error,
    },

    /// A log file could not be created.
    #[error("cannot create the log file {}: {source}", path.display())]
    LogFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// No worker could be forked from the template, and none may be started without it.
    #[error("preload: {source}")]
    Forked {
        /// Why.
        source: io::Error,
    },

    /// A signal arrived while the template was importing.
    #[error("the start of the workers was interrupted")]
    Interrupted,

    /// The system had no thread, pipe or descriptor left.
    #[error("cannot supervise the workers: {source}")]
    System {
        /// The system's error.
        source: io::Error,
    },
}

c10d_socket::debug_as_display!(StartError);
