//! Results that arrive later: futures that threads, callbacks and async tasks can wait for.
//!
//! Independent of connections, messages and call timeouts. The creator of a future completes it through its
//! [`Promise`]. A future without callbacks costs one allocation.

mod handle;
mod join;
#[cfg(all(test, shuttle))]
mod model_tests;
mod panic;
mod slot;
#[cfg(all(test, not(shuttle)))]
mod tests;

pub use self::handle::{FutureMessage, Promise, RpcFuture};
pub use self::join::join_all;
pub use self::panic::catch_panic;
pub(crate) use self::panic::contained;
pub(crate) use self::slot::{Executor, Hint, Job};
