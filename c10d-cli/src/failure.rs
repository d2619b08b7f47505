//! How a command ends when it does not end well: the exit code and the one line for people.

use std::io;

use c10d_socket::ListenError;
use c10d_store::StoreError;

/// Why a command failed. The exit code is part of the interface: scripts tell by it whether to wait,
/// to give up or to look at the network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The answer is no: not there, not written, nothing in the queue. Without a text when it has
    /// been printed already. Exit code 1.
    #[error("{0}")]
    No(String),

    /// The command makes no sense as given. Exit code 2, as for arguments that clap refuses.
    #[error("{0}")]
    Usage(String),

    /// The server cannot listen. Exit code 3.
    #[error(transparent)]
    Listen(#[from] ListenError),

    /// The store's server could not be started or reached, or it refused. The exit code depends on
    /// which.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// A write was sent, but what should have proved that it was carried out failed. The exit code
    /// is that of the proof.
    #[error("{what}: sent, but perhaps refused: {source}")]
    Unconfirmed {
        /// The command and its key.
        what: String,
        /// Why there is no proof.
        source: Box<StoreError>,
    },

    /// A measurement could not be finished. Exit code 3.
    #[error(transparent)]
    Bench(Box<dyn std::error::Error + Send + Sync>),

    /// Standard output takes no more, as when its disk is full. Exit code 4.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),

    /// The reader of standard output has closed it, as `head` does. Without a text, and with the exit
    /// code of a program that SIGPIPE ends, 141, as Rust programs ignore that signal.
    #[error("")]
    OutputClosed,

    /// The system refused something that is not about the store. Exit code 3.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Failure {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::System {
            what: what.into(),
            source,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::No(_) => NO,
            Self::Usage(_) => USAGE,
            Self::Store(error) => exit_code_of(error),
            Self::Unconfirmed { source, .. } => exit_code_of(source),
            Self::Output(_) => OUTPUT,
            Self::OutputClosed => OUTPUT_CLOSED,
            Self::Listen(_) | Self::Bench(_) | Self::System { .. } => NO_CONNECTION,
        }
    }
}

const NO: u8 = 1;
const USAGE: u8 = 2;
const NO_CONNECTION: u8 = 3;
const OUTPUT: u8 = 4;
/// 128 + SIGPIPE.
const OUTPUT_CLOSED: u8 = 141;

fn exit_code_of(error: &StoreError) -> u8 {
    match error {
        StoreError::Timeout { .. }
        | StoreError::BarrierTimeout { .. }
        | StoreError::QueueEmpty { .. }
        | StoreError::WorkersMissing { .. } => NO,
        StoreError::InvalidArgument { .. }
        | StoreError::LimitExceeded { .. }
        | StoreError::NotANumber { .. }
        | StoreError::Unsupported { .. } => USAGE,
        // No connection, a lost one, or a server whose answers cannot be relied on.
        _ => NO_CONNECTION,
    }
}
