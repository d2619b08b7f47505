//! The stacks and the activity of processes, which are read in addition to their counters.

use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::stacks::Stacks;
use c10d_stacks::ProcessActivity;

use crate::launcher::stacks::{NoStacks, StackThread};

/// How long the stacks of all workers of a node may take.
const STACKS_TIMEOUT: Duration = Duration::from_secs(4);

/// Reads what processes do.
pub(in crate::launcher) trait ReadProcesses: Send {
    /// Returns the Python stacks of these processes in their order, or the reason why a process has none. May block for
    /// some seconds.
    fn stacks(&self, pids: &[u32]) -> Vec<Result<Stacks, NoStacks>>;

    /// Returns the activity of a process; the default if it has exited.
    fn activity(&self, pid: u32) -> ProcessActivity;
}

/// The processes of this host.
#[derive(Debug)]
pub(in crate::launcher) struct Processes(Arc<StackThread>);

impl Processes {
    /// The given thread reads their stacks.
    pub(in crate::launcher) const fn new(stacks: Arc<StackThread>) -> Self {
        Self(stacks)
    }
}

impl ReadProcesses for Processes {
    fn stacks(&self, pids: &[u32]) -> Vec<Result<Stacks, NoStacks>> {
        self.0.read(pids, STACKS_TIMEOUT)
    }

    fn activity(&self, pid: u32) -> ProcessActivity {
        ProcessActivity::of(pid).unwrap_or_default()
    }
}
