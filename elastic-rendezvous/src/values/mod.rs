//! What the engines and the shell pass to each other, to the user, and to other nodes.

pub(crate) mod clock;
pub mod codec;
pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod found_listener;
pub(crate) mod goal;
pub(crate) mod membership;
pub(crate) mod node;
pub(crate) mod parameters;
pub(crate) mod parameters_error;
pub(crate) mod port_range;
pub(crate) mod ranks_report;
pub(crate) mod recorded_event;
pub(crate) mod report;
pub(crate) mod server_hook;
pub(crate) mod settings;
pub(crate) mod start_warnings;
pub(crate) mod state;
pub(crate) mod step;
pub(crate) mod store_directory;
pub(crate) mod store_route;
pub(crate) mod stored;
pub(crate) mod timestamp;
pub(crate) mod unreachable;
