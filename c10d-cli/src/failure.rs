//! The failures of commands: exit codes and messages of one line.

use std::io::{self, Write as _};

use c10d_inspect::http::StatusError;
use c10d_relay::RelayError;
use c10d_socket::{CredentialsError, ListenError};
use c10d_store::StoreError;
use c10d_store::journal::JournalError;
use elastic_agent::LauncherError;

use crate::terminal;

/// The reason why a command failed. Exit codes are part of the interface: scripts use them to decide
/// whether to retry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A negative answer: key missing, value not written, queue empty. Without a message if the answer is
    /// already printed. Exit code 1.
    #[error("{0}")]
    No(String),

    /// Invalid arguments. Exit code 2, like for arguments that clap rejects.
    #[error("{0}")]
    Usage(String),

    /// The server cannot listen. Exit code 3.
    #[error(transparent)]
    Listen(#[from] ListenError),

    /// The secret or the certificate cannot be used. Exit code 2.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),

    /// An operation of the store failed. The exit code depends on the error.
    #[error("{}{}", .0, hint_of(.0))]
    Store(#[from] StoreError),

    /// A write was sent, but its confirmation failed. The exit code is the confirmation's exit code.
    #[error(
        "{what}: the outcome is unknown, because the request was sent but not confirmed: {source}"
    )]
    Unconfirmed {
        /// The command and its key.
        what: String,
        /// The error of the confirmation.
        source: Box<StoreError>,
    },

    /// A relay cannot start. Exit code 3.
    #[error(transparent)]
    Relay(#[from] RelayError),

    /// The launcher's options cannot be used. The exit code depends on the error.
    #[error(transparent)]
    Launcher(#[from] LauncherError),

    /// The directory of a store is in use, damaged, or cannot be read or written. Exit code 5.
    #[error(transparent)]
    Journal(#[from] JournalError),

    /// etcd does not say who serves a store. Exit code 3.
    #[cfg(feature = "etcd")]
    #[error("{0}")]
    Etcd(String),

    /// The journal of a server that was serving failed. Exit code 5.
    #[error("the server stopped, because it cannot keep further writes: {0}")]
    JournalEnded(String),

    /// A status page cannot be read. Exit code 3.
    #[error(transparent)]
    Status(#[from] StatusError),

    /// Ranks wait for a missing rank, which the report has printed. Without a message. Exit code 4, of
    /// `c10d why` only.
    #[error("")]
    Stuck,

    /// The key of `c10d store lease` ended, or could not be kept. Exit code 3.
    #[error("lease {key:?} lost: {why}")]
    LeaseLost {
        /// The key, without the prefix.
        key: String,
        /// The reason why it ended.
        why: String,
    },

    /// The command of `c10d store lease` failed. Without a message. The exit code is its own.
    #[error("")]
    Command(u8),

    /// Standard output cannot be written, for example because the disk is full. Exit code 4.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),

    /// The reader of standard output closed it, as `head` does. Without a message. Exit code 141, the code
    /// of a program killed by SIGPIPE, which Rust programs ignore.
    #[error("")]
    OutputClosed,

    /// A system call failed that does not concern the store. Exit code 3.
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
    pub(crate) fn report(&self) -> u8 {
        complain(&self.to_string());
        self.exit_code()
    }

    /// A negative answer, unless it is positive.
    pub(crate) fn unless(is_positive: bool, text: impl FnOnce() -> String) -> Result<(), Self> {
        match is_positive {
            true => Ok(()),
            false => Err(Self::No(text())),
        }
    }

    /// A server has stopped unexpectedly.
    pub(crate) fn ended(server: &str) -> Self {
        let error = io::Error::other("its thread has stopped; see the log");
        Self::system(format!("the {server} stopped serving"))(error)
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::System {
            what: what.into(),
            source,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::No(_) => NO,
            Self::Usage(_) | Self::Credentials(_) | Self::Launcher(LauncherError::Invalid(_)) => {
                USAGE
            }
            Self::Launcher(_) => NO,
            Self::Store(error) => exit_code_of(error),
            Self::Unconfirmed { source, .. } => exit_code_of(source),
            Self::Output(_) => OUTPUT,
            Self::OutputClosed => OUTPUT_CLOSED,
            Self::Command(code) => *code,
            Self::Stuck => STUCK,
            Self::Journal(_) | Self::JournalEnded(_) => JOURNAL,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => NO_CONNECTION,
            Self::Listen(_)
            | Self::Relay(_)
            | Self::Status(_)
            | Self::LeaseLost { .. }
            | Self::System { .. } => NO_CONNECTION,
        }
    }
}

/// Prints one line on standard error, unless the text is empty.
pub(crate) fn complain(text: &str) {
    if !text.is_empty() {
        let one_line = text.lines().collect::<Vec<_>>().join(" ");
        // A closed standard error takes no text.
        let _ = terminal::StandardError.write_all(format!("c10d: {one_line}\n").as_bytes());
    }
}

/// Returns advice about the option for a secret if a missing or wrong secret can be the cause.
fn hint_of(error: &StoreError) -> &'static str {
    match error {
        StoreError::Connect { source, .. }
            if source.to_string().contains("it may require a secret") =>
        {
            ". If the server has a secret, give it with --secret-file FILE"
        }
        StoreError::Connect { source, .. }
            if source.to_string().contains("it may have no secret") =>
        {
            ". If the server has no secret, omit --secret-file and unset C10D_SECRET_FILE"
        }
        StoreError::Protocol { detail, .. } if detail.contains("a different secret") => {
            ". Give the secret of the server with --secret-file FILE"
        }
        _ => "",
    }
}

const NO: u8 = 1;
const USAGE: u8 = 2;
const NO_CONNECTION: u8 = 3;
const OUTPUT: u8 = 4;
const STUCK: u8 = 4;
const JOURNAL: u8 = 5;
/// 128 + SIGPIPE.
const OUTPUT_CLOSED: u8 = 141;

fn exit_code_of(error: &StoreError) -> u8 {
    match error {
        StoreError::Timeout { .. }
        | StoreError::BarrierTimeout { .. }
        | StoreError::QueueEmpty { .. }
        | StoreError::MemoryFull { .. }
        | StoreError::WorkersMissing { .. } => NO,
        StoreError::InvalidArgument { .. }
        | StoreError::LimitExceeded { .. }
        | StoreError::NotANumber { .. }
        | StoreError::Unsupported { .. } => USAGE,
        StoreError::Journal(_) => JOURNAL,
        // No connection, a lost one, or a server that violates the protocol.
        _ => NO_CONNECTION,
    }
}
