//! The key-value stores through which the workers of a training job find each other, compatible with
//! PyTorch's: [`TcpStoreServer`] and its client [`TcpStore`] speak the TCPStore protocol, with each
//! other and with PyTorch's servers and clients; [`FileStore`] shares a file with PyTorch's;
//! [`HashStore`] is for one process; [`PrefixStore`] is a part of any of them. All are used through
//! the [`Store`] trait: `set`, `get`, `add`, `compare_set`, `wait`, queues, barriers.
//!
//! What is kept is gone with the server: nothing is written to disk (but by [`FileStore`], for the
//! length of a job), nothing is replicated, and a client does not reconnect. There is no encryption
//! and no authentication, as PyTorch's protocol has neither: whoever reaches the port can read and
//! change everything. There is no async interface; calls block, each until a deadline. Unix only.
//!
//! ```text
//!   TcpStore ----+                                             FileStore    HashStore
//!   TcpStore ----+---- TCP ---- TcpStoreServer                     |            |
//!   PyTorch's ---+              one thread, all data             a file     this process
//! ```
//!
//! ```
//! use c10d_store::{PrefixStore, Store, TcpStore, TcpStoreOptions};
//!
//! # fn main() -> Result<(), c10d_store::StoreError> {
//! // One worker is the master, which hosts the server. Port 0 lets the system choose.
//! let master = TcpStore::open("localhost", 0, TcpStoreOptions::default().with_master(true))?;
//! let worker = TcpStore::connect("localhost", master.port())?; // usually on another machine
//!
//! worker.set("address", "10.0.0.2:1234")?;
//! assert_eq!(master.get("address")?, b"10.0.0.2:1234"); // waits until the key is there
//! assert_eq!(worker.add("arrived", 1)?, 1);
//! assert_eq!(PrefixStore::new("round1", worker).add("arrived", 1)?, 1); // another key
//! assert!(master.check(&["arrived", "round1/arrived"])?);
//! # Ok(())
//! # }
//! ```
//!
//! The protocol is described in docs/wire.md, the file format in docs/file-store.md, the inner layout
//! in ARCHITECTURE.md.
#![forbid(unsafe_code)]

mod client;
mod compare_set;
mod decimal;
mod error;
mod file_store;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod hash_store;
mod known;
mod limits;
mod message;
mod prefix_store;
mod rendezvous;
mod server;
mod session;
#[cfg(any(test, fuzzing))]
mod sim;
mod state;
mod store;
mod stored_value;
mod value_rules;
pub mod wire;

// The types of other crates that this one's API takes and gives.
pub use c10d_socket::{
    BackoffOptions, ConnectError, ConnectOptions, KeepAlive, ListenError, SocketOptions,
};
pub use client::{ListenOn, TcpStore, TcpStoreOptions};
pub use compare_set::CompareSet;
pub use error::{ErrorContext, Operation, Outcome, StoreError};
pub use file_store::{FileStore, FileStoreOptions};
pub use hash_store::HashStore;
pub use known::Known;
pub use limits::WireLimits;
pub use prefix_store::PrefixStore;
pub use rendezvous::{Rendezvous, RendezvousOptions, UrlError, rendezvous};
pub use server::{ServerOptions, TcpStoreServer};
pub use store::{DEFAULT_TIMEOUT, Store};
