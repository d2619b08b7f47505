//! How far the workers of this node are: steps that they report in files, and when they last did.

mod poller;
mod watch;

pub use self::poller::ProgressOptions;
pub(crate) use self::poller::{Poller, ProgressView};
pub(crate) use self::watch::ProgressSeen;
