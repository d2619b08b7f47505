//! Why a watchdog could not be started.

use std::io;
use std::path::PathBuf;

/// Why a watchdog could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchdogError {
    /// The named pipe could not be made.
    #[error(
        "cannot make the watchdog's pipe {}: {source}; TORCHELASTIC_TIMER_FILE must name a new file or a pipe \
         of this user",
        path.display()
    )]
    Pipe {
        /// The path of the pipe.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No pipe could be made in the directories for temporary files.
    #[error("cannot make the watchdog's pipe: {0}; set TMPDIR")]
    NoPlace(io::Error),
    /// The system has no thread or descriptor left.
    #[error("cannot start the watchdog: {0}")]
    Thread(io::Error),
}
