//! Errors of starting an agent.

use std::io;

use c10d_socket::{CredentialsError, ListenError};
use c10d_store::StoreError;

use crate::directory::DirectoryError;
use crate::worker::WorkerError;

/// Why an agent did not start.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name or the rank is invalid.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The agent cannot listen on its host and port.
    #[error("cannot listen for other workers: {0}")]
    Listen(#[from] ListenError),
    /// The secret or the certificate cannot be used.
    #[error("cannot use the credentials: {0}")]
    Credentials(#[from] CredentialsError),
    /// A socket that the agent uses internally cannot be created.
    #[error("cannot set up the sockets: {0}")]
    Socket(#[source] io::Error),
    /// The agent cannot join the group.
    #[error(transparent)]
    Directory(Box<DirectoryError>),
    /// The store cannot be used.
    #[error("cannot use the store: {0}")]
    Store(#[source] StoreError),
    /// The system cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

c10d_socket::debug_as_display!(StartError);

impl From<DirectoryError> for StartError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(Box::new(error))
    }
}
