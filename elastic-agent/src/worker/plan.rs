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
pub struct WorkerPlan {
    pub(super) rank: usize,
    pub(super) local_rank: usize,
    pub(super) command: CommandLine,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) logs: WorkerLogs,
    pub(super) line_prefix: String,
    pub(super) input: WorkerInput,
}

/// The standard input of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerInput {
    /// The standard input of this process, which all workers share. PyTorch does the same.
    Shared,
    /// The standard input of this process, for this worker alone. If it is a terminal, the worker gets its foreground.
    Alone,
    /// Nothing.
    Empty,
}

impl WorkerPlan {
    /// A worker that executes `command`. The ranks identify it in reports; its process learns them from
    /// its [environment](crate::WorkerEnvironment).
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

    /// The whole environment of the worker. Empty by default: nothing is inherited, so that what a worker
    /// gets is visible in one place.
    pub fn with_environment(
        mut self,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        self.environment = environment.into_iter().collect();
        self
    }

    /// Sets the destination of the worker's output. The default is the console, without an error file.
    pub fn with_logs(mut self, logs: WorkerLogs) -> Self {
        self.logs = logs;
        self
    }

    /// Sets the prefix of lines that are shown as well as written to files. Empty by default.
    pub fn with_line_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.line_prefix = prefix.into();
        self
    }

    /// The worker's standard input. By default all workers share this process's.
    pub(crate) const fn with_input(mut self, input: WorkerInput) -> Self {
        self.input = input;
        self
    }

    /// Returns the worker's rank on this node.
    #[must_use]
    pub const fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// Returns the destination of the worker's output.
    #[must_use]
    pub const fn logs(&self) -> &WorkerLogs {
        &self.logs
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
pub struct GroupPlan {
    pub(super) workers: Vec<WorkerPlan>,
    pub(super) filtered_stdout: Option<FilteredLog>,
    pub(super) filtered_stderr: Option<FilteredLog>,
    pub(super) remains: Remains,
    pub(super) signal_target: SignalTarget,
}

impl GroupPlan {
    /// Creates a plan for these workers.
    pub const fn new(workers: Vec<WorkerPlan>) -> Self {
        Self {
            workers,
            filtered_stdout: None,
            filtered_stderr: None,
            remains: Remains::NONE,
            signal_target: SignalTarget::Group,
        }
    }

    /// Sets which processes receive signals for the workers. By default all processes of the workers' groups. SIGKILL
    /// always reaches all of them.
    pub const fn with_signal_target(mut self, target: SignalTarget) -> Self {
        self.signal_target = target;
        self
    }

    /// Sets the file that also receives the matching lines of standard output which is both shown and written to files.
    /// None by default.
    pub fn with_filtered_stdout(mut self, log: impl Into<Option<FilteredLog>>) -> Self {
        self.filtered_stdout = log.into();
        self
    }

    /// Sets the file that also receives the matching lines of standard error which is both shown and written to files.
    /// None by default.
    pub fn with_filtered_stderr(mut self, log: impl Into<Option<FilteredLog>>) -> Self {
        self.filtered_stderr = log.into();
        self
    }

    /// Sets the files that another process removes if this process is killed while the workers run.
    pub(crate) fn with_remains(mut self, remains: Remains) -> Self {
        self.remains = remains;
        self
    }

    /// A group for each worker.
    pub(crate) fn split(self) -> Vec<Self> {
        let workers = self.workers.into_iter();
        let each = workers.map(|worker| Self {
            workers: vec![worker],
            filtered_stdout: self.filtered_stdout.clone(),
            filtered_stderr: self.filtered_stderr.clone(),
            remains: self.remains.clone(),
            signal_target: self.signal_target,
        });
        each.collect()
    }

    /// The workers, in the order in which they start.
    pub fn workers(&self) -> &[WorkerPlan] {
        &self.workers
    }
}
