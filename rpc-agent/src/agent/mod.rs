//! The public API of a worker's agent, on top of the `runtime`.

mod call;
mod handle;
mod service;
mod start;
mod start_error;

pub use self::call::Call;
pub use self::handle::{AgentHandle, Work};
pub use self::start::Agent;
pub use self::start_error::StartError;
