//! Calls between the named workers of a training job: deadlines, retries, an orderly joint end.
//!
//! Each worker of a job starts an [`Agent`], under a name and a rank. The agents find each other through any
//! [`Store`](c10d_store::Store), connect when the first call is made, and call the functions that others have
//! put into their [`Registry`]. Futures, callbacks and blocking calls all work without an async runtime; a
//! future can be awaited in one.
//!
//! ```
//! use std::sync::Arc;
//! use std::thread;
//! use std::time::Duration;
//!
//! use c10d_store::{HashStore, Store};
//! use rpc_agent::{Agent, AgentOptions, Registry};
//!
//! fn options(name: &str, rank: u32) -> AgentOptions {
//!     AgentOptions::new(name, rank).with_world_size(2).with_host("127.0.0.1")
//! }
//!
//! // Workers of one process meet in a HashStore; in a job each has a TcpStore of the same address.
//! let store: Arc<dyn Store> = Arc::new(HashStore::new());
//! let its_store = Arc::clone(&store);
//! let patience = Duration::from_secs(30);
//!
//! let server = thread::spawn(move || {
//!     let mut registry = Registry::new();
//!     registry
//!         .register("reverse", |_, payload| Ok(payload.iter().rev().copied().collect()))
//!         .expect("no other function has this name");
//!     let agent = Agent::start(options("server", 0), registry, its_store)?;
//!     // Serves until nobody needs it any more.
//!     agent.shutdown(patience)?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! });
//!
//! // Waits until all workers are there.
//! let agent = Agent::start(options("trainer", 1), Registry::new(), store)?;
//! assert_eq!(agent.call_bytes("server", "reverse", "abc")?, "cba");
//! agent.shutdown(patience)?;
//! server.join().expect("no panic").expect("the server has ended well");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! A call ends once, with a value or an [`RpcError`], at its deadline at the latest. It is made **at most
//! once**: when the connection is lost it fails, and [`RpcError::outcome`] says whether the function cannot
//! have run, has run, or that this is not known. A call with retries is made **at least once** until it
//! succeeds or gives up: only functions that may run twice should be called so; see [`RetryOptions`].
//!
//! No worker that ends with [`Agent::shutdown`] leaves a group of fixed size while another one still needs
//! it, however calls are nested. Groups of fixed size start and end together
//! ([`AgentOptions::with_world_size`]); in others workers come and go.
//!
//! # Threads
//!
//! An agent has threads of its own, `rpc-1`, `rpc-2` and so on: one of them looks after all sockets, and the
//! thread that has read a request runs its function itself, unless that takes long; then another one takes
//! over. Functions run in parallel, at most [`AgentOptions::with_handler_threads`] at a time, and may call
//! any worker and wait for the answer, their caller and their own worker included: others take the places
//! of threads that wait, up to [`AgentOptions::with_threads_max`]. Callbacks of futures run on these threads
//! too. `rpc-retry` sleeps until something is to be sent again, and `rpc-dial-1` and so on make connections.
//! All are joined when the agent ends, so a function that never returns keeps its agent from ending.
//!
//! # What it does not do
//!
//! There is no authentication and no encryption: whoever reaches the port and knows the group's names can
//! call its functions. Nothing that comes over the network is executed; what can be called is what was
//! registered. A call that was given up is not taken back from who serves it, but its deadline goes with it.
//!
//! # Features
//!
//! - `typed`: calls whose arguments and results are serde types, as in
//!   `agent.call::<(i64, i64), i64>("server", "add", (1, 2))`; see the module `typed`.
//!
//! The protocol, all limits and the differences from PyTorch's RPC are in the repository's `docs/rpc.md`.
#![forbid(unsafe_code)]

mod agent;
mod context;
mod directory;
mod error;
mod fault;
mod future;
mod handler_error;
mod handshake;
mod in_flight;
mod incoming;
mod metrics;
mod outgoing;
mod pool;
mod registry;
mod retry;
mod sync;
mod termination;
#[cfg(feature = "typed")]
pub mod typed;
mod wire;
mod worker;

pub use agent::{Agent, AgentHandle, AgentOptions, CallOptions, StartError};
pub use context::{Context, Reply};
pub use directory::{DirectoryError, MissingRanks};
pub use error::{CallMessage, CallSite, NotSent, Outcome, RpcError};
pub use fault::{FaultPlan, FaultPlanError, InjectedFaults};
pub use future::{FutureMessage, Promise, RpcFuture, join_all};
pub use handler_error::HandlerError;
pub use metrics::{LatencySnapshot, MetricsSnapshot, PeerSnapshot};
pub use registry::{FUNCTION_NAME_BYTES_MAX, Registry, RegistryError, RegistryId};
pub use retry::{RetryOptions, RetryOptionsError};
pub use termination::{TerminationError, Workers};
pub use worker::{
    Destination, WORKER_ID_MAX, WORKER_NAME_BYTES_MAX, WorkerError, WorkerId, WorkerInfo,
    WorkerName,
};
