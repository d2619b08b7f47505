//! Why a benchmark could not be finished.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use c10d_store::StoreError;

use crate::failure::Failure;

#[derive(Debug, thiserror::Error)]
pub(super) enum BenchError {
    #[error("cannot connect to {address}: {source}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },

    #[error("lost connection {link} to the server at {address}: {source}")]
    ConnectionLost {
        address: SocketAddr,
        link: usize,
        source: io::Error,
    },

    #[error("the server at {address} sent nothing for {silence:?}; {missing} replies are missing")]
    Stalled {
        address: SocketAddr,
        silence: Duration,
        missing: usize,
    },

    /// A figure for wrong answers would be worthless.
    #[error("the server at {address} answered {request} incorrectly: {detail}")]
    WrongAnswer {
        address: SocketAddr,
        request: &'static str,
        detail: String,
    },

    #[error(transparent)]
    Store(Box<StoreError>),

    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
}

impl From<StoreError> for BenchError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::Bench(Box::new(error))
    }
}

impl BenchError {
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
