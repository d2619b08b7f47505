//! Why the status pages of a store server cannot be read.

use std::io;

use c10d_inspect::http::HttpError;
use c10d_socket::{HostPort, printable};

/// The most characters of a text of the other side.
const TEXT_CHARS_MAX: usize = 400;

/// Why a status page cannot be read. Exit code 3.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    /// The host name has no address.
    #[error("cannot find the host of the store {server}: {source}")]
    UnknownHost { server: HostPort, source: io::Error },

    /// No answer, for a reason that does not depend on the kind of the server.
    #[error(transparent)]
    Http(#[from] HttpError),

    #[error(
        "the server at {server} is a c10d store without status pages: a program hosts it, or it runs with \
         --no-status; serve the store with `c10d run` or `c10d store serve`"
    )]
    TurnedOff { server: HostPort },

    #[error(
        "the server at {server} is PyTorch's: it does not know who waits; serve the store with `c10d run` or \
         `c10d store serve` instead of torchrun or rank 0; if only the nodes meet there, ask the store of \
         MASTER_ADDR and MASTER_PORT in a worker"
    )]
    PyTorchs { server: HostPort },

    /// Also what a store does that accepts a connection only to close it, as its places are used up.
    #[error(
        "the server at {server} closes each connection without an answer: it has no file descriptor or no place left for \
         more connections, or it is not a store; its log says which"
    )]
    ClosesAtOnce { server: HostPort },

    #[error("the server at {server} is not a store: {source}")]
    NotAStore { server: HostPort, source: HttpError },

    #[error(
        "the workers of run \"{}\" use the store {}, which the rendezvous at {rendezvous} names, and it cannot be asked: \
         {source}",
        printable(run_id, TEXT_CHARS_MAX),
        printable(store, TEXT_CHARS_MAX)
    )]
    WorkersStore {
        store: String,
        run_id: String,
        rendezvous: HostPort,
        source: Box<Self>,
    },

    #[error("{server} refuses {path} with HTTP status {status}: {reason}")]
    Refused {
        server: HostPort,
        path: String,
        status: u16,
        reason: String,
    },

    #[error(
        "cannot understand the answer of {server} to {path}: {}; are both c10d of the same version?",
        printable(&source.to_string(), TEXT_CHARS_MAX)
    )]
    NotUnderstood {
        server: HostPort,
        path: String,
        source: serde_json::Error,
    },
}
