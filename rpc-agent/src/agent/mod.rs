//! The public API of a worker's agent, on top of the `runtime`.

mod call;
mod handle;
mod service;
mod start;

pub use self::call::Call;
pub use self::handle::{AgentHandle, Work};
pub use self::start::Agent;
