//! The Python stacks of the workers, which this process may read because it has started them.

mod readers;
mod source;
mod subject;
mod thread;

pub(super) use source::NoStacks;
pub(super) use subject::{has_python_name, observed};
pub(super) use thread::StackThread;

/// Whether this program can read stacks.
pub(super) const CAN_READ: bool = cfg!(feature = "stacks");
