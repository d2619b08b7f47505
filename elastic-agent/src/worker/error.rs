//! Why a group of workers could not be started.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Why no worker was started. Those that had been are killed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The program of a worker could not be executed: most often it is not there.
    #[error("cannot start {} as local rank {local_rank}: {source}", program.display())]
    Program {
        /// The program.
        program: OsString,
        /// The first worker that could not be started.
        local_rank: usize,
        /// What the system said.
        source: io::Error,
    },

    /// A file for a worker's output could not be made.
    #[error("cannot make the log file {}: {source}", path.display())]
    LogFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The system had no thread or descriptor left for looking after the workers.
    #[error("cannot look after workers: {source}")]
    System {
        /// What the system said.
        source: io::Error,
    },
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
