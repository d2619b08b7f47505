//! Errors of credentials, and of connections that use them.

use std::io;
use std::path::PathBuf;

/// The error of credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A file of the credentials cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    #[non_exhaustive]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read a file of the credentials.
    #[error("{} can be read by other users (mode {mode:04o}): run `chmod 600 {}`", .path.display(), .path.display())]
    #[non_exhaustive]
    Exposed {
        /// The path of the file.
        path: PathBuf,
        /// The permissions of the file.
        mode: u32,
    },
    /// The content of a file, or a value, is not valid.
    #[error("{origin}: {detail}")]
    #[non_exhaustive]
    Invalid {
        /// The file, or what else the content is from.
        origin: String,
        /// The problem. Contains nothing secret.
        detail: String,
    },
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
}

/// The error of a connection with credentials. The peer's bytes are the cause: the peer does not have the secret, or
/// uses another protocol, or a third party has changed the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct TlsError {
    pub(super) detail: String,
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
