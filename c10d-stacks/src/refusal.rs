//! Explains why the system refuses to let this process read another process.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::error::StackError;

/// Returns why the kernel refuses access to the memory of this process.
pub(crate) fn of_memory(pid: u32) -> StackError {
    // The files in a folder belong to root if the process allows no access to its memory. The folder does not.
    let owner = |path: String| fs::metadata(path).ok().map(|it| it.uid());
    let (Some(theirs), Some(own)) = (
        owner(format!("/proc/{pid}")),
        owner("/proc/self".to_owned()),
    ) else {
        return StackError::Ended;
    };
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    refused(theirs != own, scope.ok().as_deref())
}

/// Returns why there is no folder of a process in `/proc`, which this process finds its own folder in.
pub(crate) fn of_folder(pid: u32) -> StackError {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // `/proc` can hide the processes of other users (hidepid), which a signal still finds.
    match pid.map(test_kill_process) {
        Some(Err(Errno::PERM)) => StackError::OtherUser,
        _ => StackError::Ended,
    }
}

/// Returns the reason from the owner of the process and the text of `ptrace_scope`, if the system has it.
fn refused(is_others: bool, scope: Option<&str>) -> StackError {
    if is_others {
        return StackError::OtherUser;
    }
    match scope.and_then(|text| text.trim().parse().ok()) {
        None | Some(0) => StackError::Forbidden,
        Some(scope) => StackError::PtraceScope(scope),
    }
}

#[cfg(test)]
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
            let text = refused(is_others, scope).to_string();
            assert!(text.contains(expected), "{text}");
            assert!(!text.ends_with('.'));
        }
    }
}
