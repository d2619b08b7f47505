//! The reasons why the status pages of a store server cannot be read.

use std::io;

use c10d_socket::{HostPort, printable};
use c10d_store::DataLost;

use super::client::HttpError;

/// The most characters of a text of the other side.
const TEXT_CHARS_MAX: usize = 400;

/// The reason why a status page cannot be read. Each error names the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The host name has no address.
    #[error("cannot find the host of the store {server}: {source}")]
    UnknownHost {
        /// The server, as named by the caller.
        server: HostPort,
        /// The error of the lookup.
        source: io::Error,
    },

    /// The store moves between servers, and none of them leads, as far as its directory says.
    #[error("cannot find the server of the store {store}: {reason}")]
    NoServer {
        /// The name of the directory.
        store: String,
        /// The reason why no server leads.
        reason: String,
    },

    /// The store has lost data, as its directory says, so no server will lead.
    #[error(transparent)]
    DataLost(#[from] DataLost),

    /// The server did not answer, for a reason that does not depend on the kind of the server.
    #[error(transparent)]
    Http(#[from] HttpError),

    /// The server is a store of this project that serves no pages.
    #[error(
        "the server at {server} is a c10d store without status pages: a program hosts it, or it runs with \
         --no-status; serve the store with `c10d run` or `c10d store serve`"
    )]
    TurnedOff {
        /// The server, as named by the caller.
        server: HostPort,
    },

    /// The server is PyTorch's store, which has no pages.
    #[error(
        "the server at {server} is PyTorch's: it does not know who waits; serve the store with `c10d run` or \
         `c10d store serve` instead of torchrun or rank 0; if only the nodes meet there, ask the store of \
         MASTER_ADDR and MASTER_PORT in a worker"
    )]
    PyTorchs {
        /// The server, as named by the caller.
        server: HostPort,
    },

    /// The server closes connections, for example because its places are used up.
    #[error(
        "the server at {server} closes each connection without an answer: it has no file descriptor or no place left for \
         more connections, or it is not a store; see the log of the server"
    )]
    ClosesAtOnce {
        /// The server, as named by the caller.
        server: HostPort,
    },

    /// The server is not a store.
    #[error("the server at {server} is not a store: {source}")]
    NotAStore {
        /// The server, as named by the caller.
        server: HostPort,
        /// The reason why the server has no pages.
        source: HttpError,
    },

    /// The workers' store does not answer, and the rendezvous that names it has no information about the workers.
    #[error(
        "the workers of run \"{}\" use the store {}, which the rendezvous at {rendezvous} names, and it cannot be asked: \
         {source}",
        printable(run_id, TEXT_CHARS_MAX),
        printable(store, TEXT_CHARS_MAX)
    )]
    WorkersStore {
        /// The address of the workers' store.
        store: String,
        /// The id of their run.
        run_id: String,
        /// The server that was asked.
        rendezvous: HostPort,
        /// The reason why the workers' store does not answer.
        source: Box<Self>,
    },

    /// The job has a secret, and the caller has given none or a different one.
    #[error(
        "{}",
        match has_secret {
            false => format!(
                "the job of the server at {server} has a secret: name its file with --secret-file FILE"
            ),
            true => format!(
                "the secret that was given is not the secret of the job of the server at {server}: name the file that \
                 the job was started with, with --secret-file FILE"
            ),
        }
    )]
    WrongSecret {
        /// The server, as named by the caller.
        server: HostPort,
        /// Whether the caller has given a secret.
        has_secret: bool,
    },

    /// The server answers with a status outside of 200 to 299.
    #[error("{server} refuses {path} with HTTP status {status}: {reason}")]
    Refused {
        /// The server, as named by the caller.
        server: HostPort,
        /// The path of the page.
        path: String,
        /// The HTTP status code.
        status: u16,
        /// The start of the answer, safe to print.
        reason: String,
    },

    /// The answer has another form than expected.
    #[error(
        "cannot understand the answer of {server} to {path}: {}; are both c10d of the same version?",
        printable(&source.to_string(), TEXT_CHARS_MAX)
    )]
    NotUnderstood {
        /// The server, as named by the caller.
        server: HostPort,
        /// The path of the page.
        path: String,
        /// The error of parsing the answer.
        source: serde_json::Error,
    },
}

impl StatusError {
    /// Whether the same request may succeed later: the server does not answer, or not yet, which a takeover by another server
    /// may change.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::UnknownHost { .. }
            | Self::NoServer { .. }
            | Self::Refused { status: 503, .. } => true,
            Self::Http(error) => matches!(
                error,
                HttpError::Connect { .. }
                    | HttpError::NoAnswer { .. }
                    | HttpError::Unfinished { .. }
                    | HttpError::Closed { .. }
                    | HttpError::Truncated { .. }
                    | HttpError::Cancelled { .. }
            ),
            _ => false,
        }
    }
}
