//! A rank that is asked from this host.

use std::time::Duration;

use crate::http::Target;
use crate::stacks::Stacks;

/// How long a rank has to answer. A debug server answers in a few milliseconds, unless its rank is blocked.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// How many ranks are asked at a time.
pub(super) const AT_ONCE: usize = 128;

/// A rank whose debug server or process can be reached from this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    pub(super) rank: usize,
    pub(super) targets: Vec<Target>,
    pub(super) pid: Option<u32>,
    /// The stacks that its launcher has read, or the reason why it has none; `None` if it has not tried.
    pub(super) stacks: Option<Result<Stacks, String>>,
    /// The command line that its launcher has read with the stacks.
    pub(super) command_line: Option<String>,
}

impl Worker {
    /// A rank with its debug servers, in the order in which they are tried, and its process, if that is one of this
    /// host.
    #[must_use]
    pub const fn new(rank: usize, targets: Vec<Target>, pid: Option<u32>) -> Self {
        Self {
            rank,
            targets,
            pid,
            stacks: None,
            command_line: None,
        }
    }

    /// Sets the stacks that its launcher has read from its memory, or the reason why it could not read them, in a
    /// clause, and its command line if it is not Python. Its debug servers are asked for its stacks only if the launcher
    /// could not read them.
    #[must_use]
    pub fn with_stacks(
        mut self,
        stacks: Result<Stacks, String>,
        command_line: Option<String>,
    ) -> Self {
        self.stacks = Some(stacks);
        self.command_line = command_line;
        self
    }
}
