#![doc = include_str!("../README.md")]
//!
//! # Guarantees
//!
//! A call ends once, with a value or an [`RpcError`], at its deadline at the latest. It runs its function **at most
//! once**. If the connection is lost the call fails, and [`RpcError::outcome`] returns whether the function ran, did
//! not run, or may have run. A call with retries runs its function **at least once** if it succeeds, so that function
//! must be idempotent; see [`RetryOptions`].
//!
//! A group of fixed size ([`AgentOptions::with_world_size`]) starts and shuts down together: no worker that calls
//! [`Agent::shutdown`] leaves while another worker still needs it, however calls are nested. In other groups workers
//! join and leave at any time.
//!
//! # Threads
//!
//! | thread | what runs on it |
//! |---|---|
//! | `rpc-1`, `rpc-2`, ... | sockets, functions, callbacks, and attempts to connect to other workers |
//!
//! Functions run in parallel, at most [`AgentOptions::with_handler_threads`] at a time. A function may call any
//! worker and wait for the answer, its caller and its own worker included: other threads take the place of
//! those that wait, up to [`AgentOptions::with_threads_max`]. All threads are joined when the agent shuts down,
//! so a function that never returns blocks the shutdown.
//!
//! # Features
//!
//! - `tls`: connections that are authenticated and encrypted, with a shared secret
//!   (`AgentOptions::with_secret`) or certificates.
//! - `typed`: calls whose arguments and results are serde types; see the module `typed`.
//!
//! The wire protocol, all limits and the differences from PyTorch's RPC are in the repository's `docs/spec/rpc.md`.
#![forbid(unsafe_code)]

mod agent;
mod clock;
mod context;
mod directory;
mod error;
mod future;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod metrics;
mod options;
mod peer;
mod pool;
mod registry;
mod retry;
mod runtime;
mod segmented_queue;
mod shortlist;
mod sync;
mod termination;
#[cfg(feature = "typed")]
pub mod typed;
mod wire;
mod worker;

// The types of other crates that this one's options take.
pub use agent::{Agent, AgentHandle, Call, Work};
#[cfg(feature = "tls")]
pub use c10d_socket::{CertificateFiles, Secret};
pub use c10d_socket::{Credentials, CredentialsError};
pub use context::{Context, Reply};
pub use directory::DirectoryError;
pub use error::{CallMessage, CallSite, HandlerError, NotSent, Outcome, RpcError, StartError};
#[doc(hidden)]
pub use future::catch_panic;
pub use future::{FutureMessage, Promise, RpcFuture, join_all};
pub use metrics::MetricsSnapshot;
pub use options::{AgentOptions, Fault, FaultInjector};
pub use peer::RegistryId;
pub use registry::{FUNCTION_NAME_BYTES_MAX, Registry, RegistryError};
pub use retry::{RetryGroup, RetryOptions, RetryOptionsError};
pub use shortlist::Shortlist;
pub use termination::TerminationError;
pub use worker::{
    Destination, WORKER_ID_MAX, WORKER_NAME_BYTES_MAX, WorkerError, WorkerId, WorkerInfo,
    WorkerName,
};
