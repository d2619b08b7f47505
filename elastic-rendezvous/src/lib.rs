#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod engine;
mod shell;
mod values;

pub use shell::address_search::{ReachOptions, Reached, find_reachable};
pub use shell::backend::{RendezvousBackend, StateWatch};
pub use shell::board::{BoardError, RoundBoard, Wait};
pub use shell::bootstrap::clear_workers_store;
pub use shell::c10d_backend::{C10D_BACKEND, C10dBackend, Traffic};
pub use shell::check_store::{CheckServer, CheckStore, open_check_store};
pub use shell::dynamic_rendezvous::{DynamicRendezvous, DynamicRendezvousOptions};
pub use shell::factory::{C10D_SETTINGS, create_c10d, create_handler, start_warnings};
pub use shell::group_store::GroupStore;
pub use shell::handler::{
    BootstrapInfo, Listener, RendezvousEvent, RendezvousHandler, RendezvousInfo, end_entry,
    open_round,
};
pub use shell::listener_watch::find_listener;
pub use shell::marks::MarkBoard;
pub use shell::static_rendezvous::{STATIC_BACKEND, STATIC_TIMEOUT, StaticRendezvous};
pub use shell::this_host;
pub use shell::write_lease::WriteLease;
pub use values::codec;
pub use values::diagnosis::{FoundListener, Unreachable};
pub use values::endpoint::Endpoint;
pub use values::error::RendezvousError;
pub use values::node::{NamedNode, NodeId};
pub use values::parameters::{RendezvousParameters, parse_config};
pub use values::parameters_error::{DEFAULT_PORT, EndpointError, ParametersError};
pub use values::port_range::{PortRange, PortRangeError};
pub use values::ranks_report::RanksReport;
pub use values::recorded_event::{NodeState, RecordedEvent};
pub use values::report::{DroppedNode, LeftNode, LostNode, Membership, NotJoining, WaitReport};
pub use values::settings::RendezvousSettings;
pub use values::start_warnings::{StartWarning, StartWarnings, WarningKind};
pub use values::state::{DatetimeStyle, Part, RendezvousState, SetState, Stored, Token, Watched};
pub use values::store_access::{ServerHook, StoreDirectory, StoreRoute};
pub use values::timestamp::Timestamp;
