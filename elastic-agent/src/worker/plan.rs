//! What is to be started.

use std::ffi::OsString;

use crate::command_line::CommandLine;
use crate::logs::{FilteredLog, WorkerLogs};

/// One worker to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPlan {
    /// Its rank on this node.
    pub local_rank: usize,
    /// Its rank among all.
    pub rank: usize,
    /// What is executed, local rank put in.
    pub command: CommandLine,
    /// Its whole environment; nothing else is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// Where its output goes.
    pub logs: WorkerLogs,
    /// What stands before its lines where output to files is shown as well.
    pub line_prefix: String,
}

/// The workers of one node in one round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupPlan {
    /// The workers.
    pub workers: Vec<WorkerPlan>,
    /// Where chosen lines of shown standard output are written once more.
    pub filtered_stdout: Option<FilteredLog>,
    /// The same for standard error.
    pub filtered_stderr: Option<FilteredLog>,
}
