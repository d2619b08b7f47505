//! The public API of a worker's agent, on top of the `runtime`.

mod handle;
mod options;
mod serve;
mod served_call;
mod start;
mod start_error;

pub use self::handle::AgentHandle;
pub use self::options::{AgentOptions, CallOptions};
pub(crate) use self::served_call::ServedCall;
pub use self::start::Agent;
pub use self::start_error::StartError;
