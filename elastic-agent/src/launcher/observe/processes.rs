//! The stacks and details of processes, which are read in addition to their counters.

use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::stacks::Stacks;
use c10d_stacks::{ProcessActivity, StackError, command_line};

use crate::launcher::stacks::StackThread;

/// How long the stacks of all workers of a node may take.
const STACKS_TIMEOUT: Duration = Duration::from_secs(4);

/// Reads what processes do.
pub(in crate::launcher) trait ReadProcesses: Send {
    /// Returns the Python stacks of these processes in their order, or the reason why a process has none. `None` if a
    /// process is not Python. May block for some seconds.
    fn stacks(&self, pids: &[u32]) -> Vec<Option<Result<Stacks, String>>>;

    fn details(&self, pid: u32, is_python: bool) -> ProcessDetails;
}

/// The details that the system shows of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::launcher) struct ProcessDetails {
    /// The function of the kernel in which its main thread waits.
    pub(in crate::launcher) waits_in: Option<String>,
    /// The system call in which its main thread is.
    pub(in crate::launcher) system_call: Option<String>,
    /// `None` if it runs Python.
    pub(in crate::launcher) command_line: Option<String>,
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
    fn stacks(&self, pids: &[u32]) -> Vec<Option<Result<Stacks, String>>> {
        let not_python = StackError::NotPython.to_string();
        let read = self.0.read(pids, STACKS_TIMEOUT).into_iter();
        read.map(|stacks| Some(stacks).filter(|it| it.as_ref().err() != Some(&not_python)))
            .collect()
    }

    fn details(&self, pid: u32, is_python: bool) -> ProcessDetails {
        let activity = ProcessActivity::of(pid).unwrap_or_default();
        ProcessDetails {
            waits_in: activity.waits_in,
            system_call: activity.system_call,
            // Reading it can block like reading stacks.
            command_line: (!is_python).then(|| command_line(pid)).flatten(),
        }
    }
}
