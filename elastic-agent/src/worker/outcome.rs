//! Workers that exited.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use super::exit_code::ExitKind;

/// The exit of a worker, reported as soon as the agent notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerExit {
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's global rank.
    pub rank: usize,
    /// The process id.
    pub pid: u32,
    /// How the process ended.
    pub exit: ExitKind,
    /// When the agent noticed.
    pub ended_at: SystemTime,
}

/// A worker that exited, with everything that may explain why.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkerOutcome {
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's global rank.
    pub rank: usize,
    /// The process id, which may be in use again.
    pub pid: u32,
    /// How the process ended.
    pub exit: ExitKind,
    /// When the agent noticed.
    pub ended_at: SystemTime,
    /// Whether the worker was still running when the group was stopped.
    pub was_stopped: bool,
    /// The file in which the worker may have left its exception.
    pub error_file: Option<PathBuf>,
    /// The last bytes of standard error, 4 KiB at most; empty if it was a terminal.
    pub stderr_tail: Vec<u8>,
}

impl fmt::Debug for WorkerOutcome {
    /// Shows lengths instead of bytes, which can be long and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerOutcome")
            .field("local_rank", &self.local_rank)
            .field("rank", &self.rank)
            .field("pid", &self.pid)
            .field("exit", &self.exit)
            .field("ended_at", &self.ended_at)
            .field("was_stopped", &self.was_stopped)
            .field("error_file", &self.error_file)
            .field("stderr_tail_bytes", &self.stderr_tail.len())
            .finish()
    }
}
