//! The exit code of a worker: from what the system reports to PyTorch's number.

use std::fmt;

use rustix::process::WaitIdStatus;

use crate::signal_name::name_of;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// The process exited with this code, 0 to 255.
    Code(i32),
    /// A signal ended the process.
    Signal {
        /// The signal's number.
        number: i32,
        /// Whether the system wrote a core file.
        has_dumped_core: bool,
    },
    /// The exit status is lost: other code in this process reaped the child. Counts as a failure, as it
    /// may have been one.
    Unknown,
}

impl ExitKind {
    /// How the process ended, as waitid(2) reports it.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

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
