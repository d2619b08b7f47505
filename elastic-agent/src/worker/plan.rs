//! The workers that a group starts.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use super::guardian::Remains;
use crate::command_line::CommandLine;
use crate::logs::{FilteredLog, WorkerLogs};

/// The reason why no worker was started. Workers that were already running are killed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The program of a worker could not be executed: most often it does not exist.
    #[error("cannot start {} as local rank {local_rank}: {source}", program.display())]
    Program {
        /// The program, by its path or its name.
        program: OsString,
        /// The local rank of the first worker that could not be started.
        local_rank: usize,
        /// The error of the operating system.
        source: io::Error,
    },

    /// A log file could not be created.
    #[error("cannot create the log file {}: {source}", path.display())]
    LogFile {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// A worker could not be forked from the template, and workers may not be started without it.
    #[error("preload: {source}")]
    Forked {
        /// The reason, as text.
        source: io::Error,
    },

    /// A signal arrived while the template was importing.
    #[error("the start of the workers was interrupted")]
    Interrupted,

    /// The system had no thread, pipe or descriptor left.
    #[error("cannot supervise the workers: {source}")]
    System {
        /// The error of the operating system.
        source: io::Error,
    },
}

c10d_socket::debug_as_display!(StartError);

/// The plan of one worker to start.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct WorkerPlan {
    /// The worker's rank in its job, for reports.
    pub rank: usize,
    /// The worker's rank on this node, for reports.
    pub local_rank: usize,
    /// The command that the worker executes.
    pub command: CommandLine,
    /// The whole environment of the worker, for example a [`WorkerEnvironment`](crate::WorkerEnvironment). Empty by default:
    /// nothing is inherited, so that the variables of a worker are visible in one place.
    pub environment: Vec<(OsString, OsString)>,
    /// The destinations of the worker's output. The default is the console, without an error file.
    pub logs: WorkerLogs,
    /// The prefix of lines that are shown as well as written to files. Empty by default.
    pub line_prefix: String,
    pub(crate) input: WorkerInput,
}

/// The standard input of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerInput {
    /// The standard input of this process, which all workers share. PyTorch does the same.
    Shared,
    /// The standard input of this process, for this worker alone. If it is a terminal, the worker gets its foreground.
    Alone,
    /// An empty standard input.
    Empty,
}

impl WorkerPlan {
    /// Creates the plan of a worker that executes `command`. By default all workers share the standard input of this process.
    pub const fn new(rank: usize, local_rank: usize, command: CommandLine) -> Self {
        Self {
            rank,
            local_rank,
            command,
            environment: Vec::new(),
            logs: WorkerLogs::CONSOLE,
            line_prefix: String::new(),
            input: WorkerInput::Shared,
        }
    }
}

/// The processes that receive a signal for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SignalTarget {
    /// The worker alone. When the worker exits after the signal of a [stop](crate::WorkerGroup::stop), the remaining
    /// processes of its group get the same signal. For programs that handle signals and stop their own children, for example
    /// Python with the processes of a data loader.
    Worker,
    /// All processes of the worker's group. For shells and other programs that pass no signal on.
    #[default]
    Group,
}

/// The workers of one node in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct GroupPlan {
    /// The workers, in the order in which they start.
    pub workers: Vec<WorkerPlan>,
    /// The file that also receives the matching lines of standard output which is both shown and written to files. `None` by
    /// default.
    pub filtered_stdout: Option<FilteredLog>,
    /// The file that also receives the matching lines of standard error which is both shown and written to files. `None` by
    /// default.
    pub filtered_stderr: Option<FilteredLog>,
    /// The processes that receive signals for the workers. By default all processes of the workers' groups. SIGKILL always
    /// reaches all of them.
    pub signal_target: SignalTarget,
    /// The files that the guardian removes if this process is killed while the workers run.
    pub(crate) remains: Remains,
}

impl GroupPlan {
    /// Creates a plan for these workers.
    pub const fn new(workers: Vec<WorkerPlan>) -> Self {
        Self {
            workers,
            filtered_stdout: None,
            filtered_stderr: None,
            signal_target: SignalTarget::Group,
            remains: Remains::NONE,
        }
    }

    /// Returns a plan for each worker.
    pub(crate) fn split(mut self) -> Vec<Self> {
        let workers = std::mem::take(&mut self.workers).into_iter();
        let each = workers.map(|worker| Self {
            workers: vec![worker],
            ..self.clone()
        });
        each.collect()
    }
}
