//! The values that the engines and the shell pass to each other, to the user, and to other nodes.

pub mod codec;
pub(crate) mod diagnosis;
pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod goal;
pub(crate) mod node;
pub(crate) mod parameters;
pub(crate) mod parameters_error;
pub(crate) mod port_range;
pub(crate) mod ranks_report;
pub(crate) mod recorded_event;
pub(crate) mod report;
pub(crate) mod settings;
pub(crate) mod start_warnings;
pub(crate) mod state;
pub(crate) mod store_access;
pub(crate) mod timestamp;
