//! How far the workers of this node are: steps that they report in files, and when they last did.

mod file;
mod options;
mod poller;
mod watch;

pub use self::options::ProgressOptions;
pub(crate) use self::poller::{Poller, ProgressView};
pub(crate) use self::watch::ProgressSeen;
