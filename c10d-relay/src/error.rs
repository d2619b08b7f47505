//! Why a relay does not work.

use std::io;
use std::sync::Arc;

use c10d_socket::CredentialsError;
use c10d_store::SessionError;

/// Why a relay cannot start, or has no session.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The system has no thread, descriptor or memory left, or a socket cannot be used.
    #[error("cannot start the relay: {source}")]
    System {
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The credentials cannot be used.
    #[error(transparent)]
    Credentials(Arc<CredentialsError>),
    /// There is no session with the store.
    #[error("the relay has no session with the store: {source}")]
    Session {
        /// The cause.
        source: Arc<SessionError>,
    },
    /// The store has not been reached in time; the relay goes on trying.
    #[error("the relay has not reached the store {target} in time")]
    Timeout {
        /// The store.
        target: c10d_store::StoreAddress,
    },
    /// The wait was cancelled; the relay goes on trying.
    #[error("cancelled before the relay has reached the store")]
    Cancelled,
    /// The relay has stopped.
    #[error("the relay has stopped")]
    Stopped,
}

impl From<io::Error> for RelayError {
    fn from(source: io::Error) -> Self {
        Self::System {
            source: Arc::new(source),
        }
    }
}

impl From<CredentialsError> for RelayError {
    fn from(error: CredentialsError) -> Self {
        Self::Credentials(Arc::new(error))
    }
}
