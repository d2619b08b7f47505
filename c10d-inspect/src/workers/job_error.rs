//! Why the ranks of a job are not known.

use c10d_store::StoreError;

use crate::http::StatusError;

/// Why the ranks of a job are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The status pages cannot be read.
    #[error(transparent)]
    Status(#[from] StatusError),

    /// The store has no status pages, and its keys cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// The store knows no rank yet.
    #[error("the store knows no rank yet")]
    NoRank,

    /// The store has no status pages, and no rank has published the address of a debug server.
    #[error(
        "the store has no status pages, and no debug server has published its address in it: start the ranks with \
         `c10d run --debug-server`, or call torch.distributed.debug.start_debug_server() in them"
    )]
    NoneHasPublished,
}
