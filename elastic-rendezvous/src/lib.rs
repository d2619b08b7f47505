//! PyTorch's elastic rendezvous: who takes part in which round with which rank, while nodes come and
//! go.
//!
//! Each node of a job has a [`RendezvousHandler`]. It asks for the next round, waits until enough nodes
//! are there, and gets a rank. All nodes read and replace one value in a store they share, so there is
//! no leader. PyTorch's nodes (`torchrun`) can stand in the same rendezvous.
//!
//! ```text
//!   node A    join --------------------- rank 0 of 2 --- sees C wait --- join --- rank 0 of 3
//!   node B         join ---------------- rank 1 of 2 --- sees C wait --- join --- rank 1 of 3
//!   node C                                    join, waits ----------------------- rank 2 of 3
//!             |------- round 0 --------------------------------------|--- round 1 ------------
//! ```
//!
//! [`RendezvousRegistry`] makes a handler from parameters, as the launcher does. [`DynamicRendezvous`]
//! takes any [`RendezvousBackend`], [`C10dBackend`] any store:
//!
//! ```
//! use std::sync::Arc;
//!
//! use c10d_store::{HashStore, Store};
//! use elastic_rendezvous::{
//!     C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousHandler, RendezvousSettings,
//! };
//!
//! # fn main() -> Result<(), elastic_rendezvous::RendezvousError> {
//! let store: Arc<dyn Store> = Arc::new(HashStore::new());
//! let node = |store: &Arc<dyn Store>| {
//!     DynamicRendezvous::new(
//!         Arc::new(C10dBackend::new(Arc::clone(store), "job")?),
//!         Arc::clone(store),
//!         RendezvousSettings::new("job", 2, 2)?,
//!         DynamicRendezvousOptions::new().with_local_addr("127.0.0.1"),
//!     )
//! };
//! let (a, b) = (node(&store)?, node(&store)?);
//! std::thread::scope(|scope| {
//!     let a = scope.spawn(|| a.next_rendezvous());
//!     let b = b.next_rendezvous()?;
//!     let a = a.join().expect("no panic")?;
//!     assert_eq!((a.rank, b.rank, b.world_size), (0, 1, 2));
//!     Ok::<(), elastic_rendezvous::RendezvousError>(())
//! })
//! # }
//! ```
//!
//! The protocol, its decision tables and what is different from PyTorch's are in
//! `docs/rendezvous.md`. This crate starts no processes (`elastic-agent` does) and reads no environment
//! variables.
#![forbid(unsafe_code)]

mod apply;
mod backend;
mod bootstrap;
mod c10d_backend;
mod c10d_rendezvous;
mod clock;
pub mod codec;
mod decide;
mod dynamic;
mod endpoint;
mod error;
mod executor;
mod goal;
mod handler;
mod node;
mod node_loop;
mod observations;
mod parameters;
mod ranks_report;
mod recorded_event;
mod registry;
mod report;
mod settings;
#[cfg(test)]
mod sim;
mod state;
mod static_rendezvous;
pub mod this_host;
mod timestamp;
mod watcher;

pub use backend::{Part, RendezvousBackend, SetState, StateWatch, Stored, Token, Watched};
pub use bootstrap::clear_workers_store;
pub use c10d_backend::{C10D_BACKEND, C10dBackend, Traffic, WRITE_LEASE_NODES_MIN};
pub use c10d_rendezvous::{C10D_SETTINGS, create_c10d};
pub use clock::Now;
pub use dynamic::{DynamicRendezvous, DynamicRendezvousOptions};
pub use endpoint::{DEFAULT_PORT, Endpoint, EndpointError};
pub use error::RendezvousError;
pub use handler::{
    BootstrapInfo, Listener, Membership, RendezvousEvent, RendezvousHandler, RendezvousInfo,
};
pub use node::{NamedNode, NodeId};
pub use parameters::{ParametersError, RendezvousParameters, parse_config};
pub use ranks_report::RanksReport;
pub use recorded_event::{NodeState, RecordedEvent};
pub use registry::{RendezvousCreator, RendezvousRegistry};
pub use report::{DroppedNode, LeftNode, LostNode, WaitReport};
pub use settings::RendezvousSettings;
pub use state::{DatetimeStyle, RendezvousState};
pub use static_rendezvous::{STATIC_BACKEND, StaticRendezvous};
pub use timestamp::Timestamp;
