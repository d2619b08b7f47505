//! The result of a call, when there is one.
//!
//! Knows nothing of connections, messages and timeouts: who made the future completes it, through its
//! [`Promise`]. A future without callbacks costs one allocation.

mod executor;
mod few;
mod handle;
mod join;
#[cfg(all(test, shuttle))]
mod model_tests;
mod panic;
mod slot;
#[cfg(all(test, not(shuttle)))]
mod tests;

pub(crate) use self::executor::{Executor, Hint, Job};
pub use self::handle::{FutureMessage, Promise, RpcFuture};
pub use self::join::join_all;
pub(crate) use self::panic::{contained, panic_text};
