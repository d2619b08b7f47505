//! Why calls could not be measured.

use std::io;

use c10d_store::StoreError;
use rpc_agent::{CredentialsError, RegistryError, RpcError, StartError};

use super::super::error::BenchError;

#[derive(Debug, thiserror::Error)]
pub(in super::super) enum RpcBenchError {
    #[error(transparent)]
    Bench(#[from] BenchError),

    #[error(transparent)]
    Store(#[from] StoreError),

    #[error(transparent)]
    Credentials(#[from] CredentialsError),

    #[error(transparent)]
    Registry(#[from] RegistryError),

    #[error(transparent)]
    Start(Box<StartError>),

    #[error(transparent)]
    Call(#[from] RpcError),

    #[error("the bare echo: {0}")]
    Echo(#[from] io::Error),

    #[error("the thread that starts a worker panicked")]
    Panic,

    /// A figure for wrong answers would be worthless.
    #[error("the answer differs from the {bytes} bytes that were sent")]
    WrongAnswer { bytes: usize },
}
