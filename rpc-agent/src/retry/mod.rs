//! Repeating a request until it gets through.
//!
//! Does not know how a request is sent, nor what a record is that waits to be sent again.

#[cfg(all(test, shuttle))]
mod model_tests;
mod options;
mod queue;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod thread;
mod verdict;

pub(crate) use self::options::RetryPolicy;
pub use self::options::{RetryOptions, RetryOptionsError};
pub(crate) use self::thread::RetryThread;
pub(crate) use self::verdict::Verdict;
