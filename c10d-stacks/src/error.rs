//! The reasons why stacks cannot be read, and why the system refuses to let this process read another process.

/// The reason why the stacks of a process cannot be read. The text is a clause without a full stop, and includes the
/// cure if there is a cure: "its stacks cannot be read: the process belongs to another user: ...".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// The process has exited, or its process id belongs to another process now.
    #[error("the process has ended")]
    Ended,
    /// The process does not run Python, for example because it is a shell around Python.
    #[error("the process is not a Python program")]
    NotPython,
    /// The layout of the interpreter is unknown. The value is its version, for example "3.8.18".
    #[error("Python {0} is not supported: use Python 3.9 to 3.15, with the GIL")]
    Unsupported(String),
    /// Another user runs the process.
    #[error(
        "another user runs the process: start the launcher as that user, or as root with the capability SYS_PTRACE"
    )]
    OtherUser,
    /// The setting `kernel.yama.ptrace_scope` of the system forbids it: 1, 2 or 3.
    #[error("{}", of_scope(*.0))]
    PtraceScope(u8),
    /// The system forbids it for another reason.
    #[error("the system forbids it: give the launcher's container the capability SYS_PTRACE")]
    Forbidden,
    /// The file of the interpreter cannot be read, for the given reason.
    #[error("the file of its interpreter cannot be read: {0}")]
    FileSystem(String),
    /// The memory of the interpreter has no sensible stacks, because it starts, ends or is damaged.
    #[error("its interpreter starts, ends or is damaged ({0}): try again")]
    Unreadable(String),
    /// There is no `/proc`.
    #[error("there is no /proc: mount it")]
    NoProc,
    /// This program is built without the feature `reader`, or not for Linux.
    #[error("this program is built without a reader of stacks, or not for Linux")]
    NoReader,
}

#[cfg(all(target_os = "linux", feature = "reader"))]
impl StackError {
    /// Returns why the kernel refuses access to the memory of this process.
    pub(crate) fn of_memory(pid: u32) -> Self {
        use std::os::unix::fs::MetadataExt;

        // The files in a folder belong to root if the process allows no access to its memory. The folder does not.
        let owner = |path: String| std::fs::metadata(path).ok().map(|it| it.uid());
        let (Some(theirs), Some(own)) = (
            owner(format!("/proc/{pid}")),
            owner("/proc/self".to_owned()),
        ) else {
            return Self::Ended;
        };
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        Self::refused(theirs != own, scope.ok().as_deref())
    }

    /// Returns why there is no folder of a process in `/proc`, which this process finds its own folder in.
    pub(crate) fn of_folder(pid: u32) -> Self {
        use rustix::io::Errno;
        use rustix::process::{Pid, test_kill_process};

        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // `/proc` can hide the processes of other users (hidepid), which a signal still finds.
        match pid.map(test_kill_process) {
            Some(Err(Errno::PERM)) => Self::OtherUser,
            _ => Self::Ended,
        }
    }

    /// Returns the reason from the owner of the process and the text of `ptrace_scope`, if the system has it.
    fn refused(is_others: bool, scope: Option<&str>) -> Self {
        if is_others {
            return Self::OtherUser;
        }
        match scope.and_then(|text| text.trim().parse().ok()) {
            None | Some(0) => Self::Forbidden,
            Some(scope) => Self::PtraceScope(scope),
        }
    }
}

fn of_scope(scope: u8) -> String {
    let cure = match scope {
        1 => "only a process that has started it may read it: ask its launcher",
        2 => {
            "set it to 1 with `sysctl kernel.yama.ptrace_scope=1`, or give the launcher SYS_PTRACE"
        }
        _ => "set it to 1 in /etc/sysctl.d and restart the machine",
    };
    format!("kernel.yama.ptrace_scope is {scope}: {cure}")
}

#[cfg(all(test, target_os = "linux", feature = "reader"))]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_cure() {
        let table = [
            (true, Some("2\n"), "another user runs the process: start"),
            (
                false,
                Some("2\n"),
                "ptrace_scope is 2: set it to 1 with `sysctl",
            ),
            (
                false,
                Some("3\n"),
                "ptrace_scope is 3: set it to 1 in /etc/sysctl.d",
            ),
            (false, Some("1\n"), "ptrace_scope is 1: only a process that"),
            (
                false,
                Some("0\n"),
                "give the launcher's container the capability",
            ),
            (false, None, "give the launcher's container the capability"),
        ];
        for (is_others, scope, expected) in table {
            let text = StackError::refused(is_others, scope).to_string();
            assert!(text.contains(expected), "{text}");
            assert!(!text.ends_with('.'));
        }
    }
}
