//! Why references could not be measured.

use std::time::Duration;

use rpc_agent::{RegistryError, RpcError};
use rref::{FunctionError, RRefError, RegisterError, TableSizes};

use super::super::error::BenchError;
use super::super::rpc::error::RpcBenchError;

#[derive(Debug, thiserror::Error)]
pub(super) enum RRefBenchError {
    #[error(transparent)]
    Worker(#[from] RpcBenchError),

    #[error(transparent)]
    Registry(#[from] RegistryError),

    #[error(transparent)]
    Register(#[from] RegisterError),

    #[error(transparent)]
    Function(#[from] FunctionError),

    #[error(transparent)]
    Call(#[from] RpcError),

    #[error(transparent)]
    Reference(#[from] RRefError),

    /// A figure for wrong answers would be worthless.
    #[error("created the value {wanted}, but fetched {found}")]
    WrongValue { wanted: u64, found: u64 },

    /// A figure for values that are never freed would be worthless.
    #[error("dropped references are not freed after {after:?}: {left:?}")]
    NotFreed { after: Duration, left: TableSizes },
}

impl From<BenchError> for RRefBenchError {
    fn from(error: BenchError) -> Self {
        Self::Worker(error.into())
    }
}
