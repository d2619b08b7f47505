//! Why credentials cannot be used, and why a connection with them failed.

use std::io;
use std::path::PathBuf;

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    #[non_exhaustive]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read the file.
    #[error("{} can be read by other users (mode {mode:04o}): run `chmod 600 {}`", .path.display(), .path.display())]
    #[non_exhaustive]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The content is not what it must be.
    #[error("{origin}: {detail}")]
    #[non_exhaustive]
    Invalid {
        /// The file, or what else the content is from.
        origin: String,
        /// What is wrong. Contains nothing secret.
        detail: String,
    },
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
}

/// Why a connection with credentials failed. The peer's bytes are the cause: a peer without the secret, another
/// protocol, or somebody in between.
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
