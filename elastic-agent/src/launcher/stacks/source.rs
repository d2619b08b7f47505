//! Where stacks come from.

use std::fmt;

use c10d_inspect::stacks::Stacks;

/// Reads the stacks of processes.
pub(super) trait ReadStacks: Send + 'static {
    /// Returns the stacks, or the reason why there are none. May block for any time.
    fn read(&mut self, pid: u32) -> Result<Stacks, NoStacks>;

    /// Drops the state of processes that have exited.
    fn forget_ended(&mut self);
}

/// The reason why a process has no stacks. `Display` is a clause without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::launcher) enum NoStacks {
    /// The process does not run Python.
    NotPython {
        /// Its command line, if it has one.
        command_line: Option<String>,
    },
    /// The stacks cannot be read, for this reason.
    Unread(String),
}

impl fmt::Display for NoStacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPython { .. } => c10d_stacks::StackError::NotPython.fmt(f),
            Self::Unread(reason) => f.write_str(reason),
        }
    }
}
