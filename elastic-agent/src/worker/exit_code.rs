//! How a worker ended.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::failure::signal_name;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// It ended by itself, with this code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number.
        number: i32,
        /// Whether its memory was written to a file.
        has_dumped_core: bool,
    },
    /// Nobody knows: another part of this program has waited for all children and thrown the status
    /// away. Counts as a failure, as a success could not be told from one.
    Unknown,
}

impl ExitKind {
    /// The code as PyTorch writes it: negative for a signal, 255 for unknown.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal { number, .. } => -number,
            Self::Unknown => 255,
        }
    }

    /// Whether it ended by itself and all went well.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal { number, .. } => match signal_name(*number) {
                Some(name) => f.write_str(name),
                None => write!(f, "signal {number}"),
            },
            Self::Unknown => f.write_str("an exit status that is lost"),
        }
    }
}

/// The end of a worker, reported when it is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerExit {
    /// Its rank on this node.
    pub local_rank: usize,
    /// Its rank among all.
    pub rank: usize,
    /// Its process.
    pub pid: u32,
    /// How it ended.
    pub exit: ExitKind,
    /// When that was noticed.
    pub ended_at: SystemTime,
}

/// All that is known of a worker that has ended.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkerOutcome {
    /// Its rank on this node.
    pub local_rank: usize,
    /// Its rank among all.
    pub rank: usize,
    /// Its process, which is no more.
    pub pid: u32,
    /// How it ended.
    pub exit: ExitKind,
    /// When that was noticed.
    pub ended_at: SystemTime,
    /// Whether it was still running when the group was stopped.
    pub was_stopped: bool,
    /// The file in which it may have left what its exception was.
    pub error_file: Option<PathBuf>,
    /// The last bytes of its standard error, 4 KiB at most; none when it wrote to a terminal.
    pub stderr_tail: Vec<u8>,
}

impl fmt::Debug for WorkerOutcome {
    /// Lengths instead of bytes: they can be long and secret.
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
