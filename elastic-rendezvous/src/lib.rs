#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod apply;
mod backend;
mod bootstrap;
mod c10d_backend;
mod c10d_rendezvous;
mod choice;
mod clock;
pub mod codec;
mod decide;
mod dynamic;
mod endpoint;
mod engine;
mod error;
mod executor;
mod goal;
mod group;
mod group_ranks;
mod group_store;
mod handler;
mod handler_loop;
mod last_round;
mod mailbox;
mod node;
mod notices;
mod observations;
mod old_rounds;
mod parameters;
mod ranks_report;
mod recorded_event;
mod registry;
mod report;
mod server_hook;
mod settings;
mod shared;
#[cfg(test)]
mod sim;
mod solo;
mod state;
mod static_rendezvous;
mod stored_state;
pub mod this_host;
mod timestamp;
mod watcher;
mod write_lease;

pub use backend::{Part, RendezvousBackend, SetState, StateWatch, Stored, Token, Watched};
pub use bootstrap::{clear_workers_store, forget_workers_store};
pub use c10d_backend::{C10D_BACKEND, C10dBackend, Traffic};
pub use c10d_rendezvous::{C10D_SETTINGS, create_c10d};
pub use clock::Now;
pub use dynamic::{DynamicRendezvous, DynamicRendezvousOptions};
pub use endpoint::{DEFAULT_PORT, Endpoint, EndpointError};
pub use error::RendezvousError;
pub use group_store::GroupStore;
pub use handler::{
    BootstrapInfo, Listener, Membership, RendezvousEvent, RendezvousHandler, RendezvousInfo,
};
pub use node::{NamedNode, NodeId};
pub use notices::NotJoining;
pub use parameters::{ParametersError, RendezvousParameters, parse_config};
pub use ranks_report::RanksReport;
pub use recorded_event::{NodeState, RecordedEvent};
pub use registry::{RendezvousCreator, RendezvousRegistry};
pub use report::{DroppedNode, LeftNode, LostNode, WaitReport};
pub use server_hook::ServerHook;
pub use settings::RendezvousSettings;
pub use state::{DatetimeStyle, RendezvousState};
pub use static_rendezvous::{STATIC_BACKEND, StaticRendezvous};
pub use timestamp::Timestamp;
pub use write_lease::WriteLease;
