//! Why an agent does not start.

use std::fmt;
use std::io;

use c10d_socket::ListenError;
use c10d_store::StoreError;

use crate::directory::DirectoryError;
use crate::worker::WorkerError;

/// Why an agent did not start.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name or the rank is none.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// It cannot listen.
    #[error("cannot listen for other workers: {0}")]
    Listen(#[from] ListenError),
    /// A socket of its own failed.
    #[error("cannot set up the sockets: {0}")]
    Socket(#[source] io::Error),
    /// The group was not joined.
    #[error(transparent)]
    Directory(Box<DirectoryError>),
    /// The store cannot be used.
    #[error("cannot use the store: {0}")]
    Store(#[source] StoreError),
    /// The system has no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<DirectoryError> for StartError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(Box::new(error))
    }
}
