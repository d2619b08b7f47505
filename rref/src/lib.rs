//! References to values on other workers, counted by their owners and freed on time.
//!
//! One worker, the *owner*, has the value; *users* on other workers refer to it. A reference that is sent
//! in a message is *forked*: the sender's user is the parent of a new one at the receiver.
//!
//! ```text
//!            user f1 on A ──sent──► user f2 on B ──sent──► user f3 on C
//!                 │                     │                     │
//!           registers f1          registers f2          registers f3
//!                 └──────────────► owner: value, {f1, f2, f3} ◄┘
//! ```
//!
//! Two rules keep the value exactly as long as somebody refers to it: the owner is told of each user that
//! goes, and a user does not go before the owner knows its children.
//!
//! ```
//! use std::error::Error;
//! use std::sync::{Arc, Mutex};
//! use std::thread;
//! use std::time::Duration;
//!
//! use c10d_store::{HashStore, Store};
//! use rpc_agent::{Agent, AgentOptions, HandlerError, Registry};
//! use rref::{Functions, RRef, RRefs};
//!
//! type Failure = Box<dyn Error + Send + Sync>;
//! const PATIENCE: Duration = Duration::from_secs(30);
//!
//! fn start(name: &str, rank: u32, store: Arc<dyn Store>) -> Result<(Agent, RRefs), Failure> {
//!     let mut functions = Functions::new();
//!     functions.register("count from", |_, first: u64| Ok(Mutex::new(first)))?;
//!     functions.register_method("count up", |_, count: &Mutex<u64>, by: u64| {
//!         let mut count = count.lock().map_err(|_| HandlerError::new("a count was given up"))?;
//!         *count += by;
//!         Ok(*count)
//!     })?;
//!     let mut registry = Registry::new();
//!     let rrefs = RRefs::register(&mut registry, functions)?;
//!     let options = AgentOptions::new(name, rank).with_world_size(2).with_host("127.0.0.1");
//!     let agent = Agent::start(options, registry, store)?;
//!     rrefs.attach(&agent)?;
//!     Ok((agent, rrefs))
//! }
//!
//! fn end(agent: &Agent, rrefs: &RRefs) -> Result<(), Failure> {
//!     rrefs.shutdown(agent, PATIENCE)?;
//!     agent.shutdown(PATIENCE)?;
//!     Ok(())
//! }
//!
//! // Workers of one process meet in a HashStore; in a job each has a TcpStore of the same address.
//! let store: Arc<dyn Store> = Arc::new(HashStore::new());
//! let its_store = Arc::clone(&store);
//! let server = thread::spawn(move || {
//!     let (agent, rrefs) = start("server", 0, its_store)?;
//!     // Serves until nobody needs it any more.
//!     end(&agent, &rrefs)
//! });
//!
//! let (agent, rrefs) = start("trainer", 1, store)?;
//! let count: RRef<Mutex<u64>> = rrefs.remote("server", "count from", 40_u64)?; // does not wait
//! assert_eq!(count.rpc_sync::<u64, u64>("count up", 2)?, 42); // runs where the value is
//! drop(count); // the value is freed
//! end(&agent, &rrefs)?;
//! server.join().expect("no panic")?;
//! # Ok::<(), Failure>(())
//! ```
//!
//! # What it does not do
//!
//! A value does not survive its owner. Values that refer to each other in a circle are reported, and freed at
//! the end only. References travel in the calls of this crate, not in the agent's own. There is no
//! authentication, as with [`rpc_agent`]: who can reach a worker can name any reference.
//!
//! [`context`] is the protocol without sockets, clocks and threads; [`RRefs`] drives it over an agent, on the
//! agent's threads. The promises in full, the protocol and all limits are in the repository's `docs/rref.md`.
#![forbid(unsafe_code)]

mod answer;
mod calls;
mod carry;
pub mod context;
mod drops;

mod error;
mod functions;
mod future;
mod handle;
mod id;
mod leak;
mod options;
pub mod protocol;
mod runtime;
mod serving;
mod sync;
mod value;

pub use error::{RRefError, ShutdownError};
pub use functions::{CallContext, FUNCTION_NAME_BYTES_MAX, FunctionError, Functions};
pub use future::RRefFuture;
pub use handle::RRef;
pub use id::{ForkId, GloballyUniqueId, RRefId};
pub use leak::{HeldValue, Holder, LeakReport};
pub use options::RRefOptions;
pub use runtime::RRefs;
