//! PyTorch's c10d stores.
#![forbid(unsafe_code)]

mod client;
mod decimal;
mod error;
mod file_store;
mod hash_store;
mod limits;
mod message;
mod prefix_store;
mod server;
mod session;
#[cfg(test)]
mod sim;
mod state;
mod store;
mod stored_value;
mod value_rules;
pub mod wire;

pub use client::{ListenOn, TcpStore, TcpStoreOptions};
pub use error::{ErrorContext, Operation, Outcome, StoreError};
pub use file_store::{FileStore, FileStoreOptions};
pub use hash_store::HashStore;
pub use limits::WireLimits;
pub use prefix_store::PrefixStore;
pub use server::{ServerOptions, TcpStoreServer};
pub use store::{DEFAULT_TIMEOUT, Store};
