//! What is read of processes besides their counters.

use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::stacks::Stacks;
use c10d_stacks::{ProcessActivity, command_line, is_python};

use crate::launcher::stacks::StackThread;

/// How long the stacks of all workers of a node may take.
const STACKS_TIMEOUT: Duration = Duration::from_secs(4);

/// Reads what processes do.
pub(in crate::launcher) trait ReadProcesses: Send {
    fn is_python(&self, pid: u32) -> bool;

    /// The Python stacks of these processes, or why there are none, in their order. `None` if a process is not Python. May
    /// block for some seconds.
    fn stacks(&self, pids: &[u32]) -> Vec<Option<Result<Stacks, String>>>;

    fn details(&self, pid: u32) -> ProcessDetails;
}

/// What the system shows of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::launcher) struct ProcessDetails {
    /// The function of the kernel in which its main thread waits.
    pub(in crate::launcher) waits_in: Option<String>,
    /// The system call in which its main thread is.
    pub(in crate::launcher) system_call: Option<String>,
    pub(in crate::launcher) command_line: Option<String>,
}

/// The processes of this host.
#[derive(Debug)]
pub(in crate::launcher) struct Processes(Arc<StackThread>);

impl Processes {
    /// Their stacks are read by this thread.
    pub(in crate::launcher) const fn new(stacks: Arc<StackThread>) -> Self {
        Self(stacks)
    }
}

impl ReadProcesses for Processes {
    fn is_python(&self, pid: u32) -> bool {
        is_python(pid)
    }

    fn stacks(&self, pids: &[u32]) -> Vec<Option<Result<Stacks, String>>> {
        let python: Vec<u32> = pids.iter().copied().filter(|pid| is_python(*pid)).collect();
        let mut read = python
            .iter()
            .zip(self.0.read(&python, STACKS_TIMEOUT))
            .peekable();
        let of = |pid: &u32| Some(read.next_if(|(python, _)| *python == pid)?.1);
        pids.iter().map(of).collect()
    }

    fn details(&self, pid: u32) -> ProcessDetails {
        let activity = ProcessActivity::of(pid).unwrap_or_default();
        ProcessDetails {
            waits_in: activity.waits_in,
            system_call: activity.system_call,
            command_line: command_line(pid),
        }
    }
}
