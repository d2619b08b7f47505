//! The exit code of a worker: translates the status that the system reports to PyTorch's number.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use rustix::process::WaitIdStatus;

use crate::wording::name_of;

/// The way in which a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// The process exited with this code, 0 to 255.
    Code(i32),
    /// A signal ended the process.
    Signal {
        /// The number of the signal.
        number: i32,
        /// Whether the system wrote a core file.
        has_dumped_core: bool,
    },
    /// The exit status is lost: other code in this process reaped the child. Counts as a failure, because it
    /// may have been a failure.
    Unknown,
}

impl ExitKind {
    /// Converts the status that waitid(2) reports.
    pub(crate) fn of(status: &WaitIdStatus) -> Self {
        if let Some(code) = status.exit_status() {
            return Self::Code(code);
        }
        match status.terminating_signal() {
            Some(number) => Self::Signal {
                number,
                has_dumped_core: status.dumped(),
            },
            None => Self::Unknown,
        }
    }

    /// PyTorch's exit code: the code of the process, the negative number of the signal that ended it, 255
    /// for [`Unknown`](Self::Unknown).
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal { number, .. } => -number,
            Self::Unknown => 255,
        }
    }

    /// Whether the process exited with 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

/// `exit code 3`, `SIGTERM`, or `exit status lost`.
impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal { number, .. } => f.write_str(&name_of(*number)),
            Self::Unknown => f.write_str("exit status lost"),
        }
    }
}

/// The exit of a worker, reported as soon as the agent notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerExit {
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's global rank.
    pub rank: usize,
    /// The id of the process.
    pub pid: u32,
    /// The way in which the process exited.
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
    /// The way in which the process exited.
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

#[cfg(test)]
impl ExitKind {
    /// The exit of a process that a signal has ended, without a core file.
    pub(crate) const fn signal(number: i32) -> Self {
        Self::Signal {
            number,
            has_dumped_core: false,
        }
    }
}

#[cfg(test)]
impl WorkerOutcome {
    /// A worker of process 17 that exited on its own, this many milliseconds after 1970, and wrote this to standard error.
    pub(crate) fn for_test(rank: usize, exit: ExitKind, ended_unix_ms: u64, stderr: &str) -> Self {
        Self {
            local_rank: rank,
            rank,
            pid: 17,
            exit,
            ended_at: SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(ended_unix_ms),
            was_stopped: false,
            error_file: None,
            stderr_tail: stderr.as_bytes().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use crate::worker::outcome::*;

    #[test]
    fn a_code_is_the_processes_own_and_a_signal_is_negative() {
        let exit_of = |script| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = WaitId::Pid(Pid::from_child(&child));
            let status = waitid(pid, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            child.wait().unwrap();
            ExitKind::of(&status.unwrap().unwrap())
        };
        let exits = ["exit 0", "exit 3", "kill -s KILL $$"].map(exit_of);
        assert_eq!(exits.map(ExitKind::code), [0, 3, -9]);
        assert_eq!(exits.map(ExitKind::is_success), [true, false, false]);
        let texts = exits.map(|exit| exit.to_string());
        assert_eq!(texts, ["exit code 0", "exit code 3", "SIGKILL"]);
        assert_eq!(ExitKind::Unknown.code(), 255);
    }
}
