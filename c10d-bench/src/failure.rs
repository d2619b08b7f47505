//! Why a measurement failed: its exit code and its message of one line.

use std::io::{self, Write};
use std::process::ExitCode;

/// Exit codes are those of `c10d`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Invalid arguments. Exit code 2, as for arguments that clap rejects.
    #[error("{0}")]
    Usage(String),

    /// A measurement could not be finished. Exit code 3.
    #[error(transparent)]
    Bench(Box<dyn std::error::Error + Send + Sync>),

    /// Standard output cannot be written, as when the disk is full. Exit code 4.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),

    /// The reader of standard output closed it, as `head` does. Without a message. Exit code 141, that of a
    /// program ended by SIGPIPE, which Rust programs ignore.
    #[error("")]
    OutputClosed,

    /// A system call failed. Exit code 3.
    #[error("{what}: {source}")]
    System {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Failure {
    /// Prints one line on standard error; returns the exit code. Ignores a closed standard error.
    pub(crate) fn report(&self) -> ExitCode {
        let text = self.to_string();
        if !text.is_empty() {
            let one_line = text.lines().collect::<Vec<_>>().join(" ");
            let _ = writeln!(io::stderr(), "c10d-bench: {one_line}");
        }
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::Bench(_) | Self::System { .. } => 3,
            Self::Output(_) => 4,
            Self::OutputClosed => 141,
        })
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::System {
            what: what.into(),
            source,
        }
    }
}
