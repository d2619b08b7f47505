//! The reasons why stacks cannot be read.

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
