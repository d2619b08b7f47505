//! Process groups: signals to all of a worker's processes, and who is left in them.
//!
//! A group's id is that of its leader, the worker. It is safe to use while the worker is not reaped.

#[cfg(target_os = "linux")]
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Sends a signal to every process of a group. One without processes is no error.
pub(super) fn signal(group: Pid, signal: Signal) {
    match kill_process_group(group, signal) {
        // Systems differ in what they say of a group whose processes have all ended.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(Errno::PERM) if cfg!(not(target_os = "linux")) => {}
        Err(error) => log::warn!(
            "cannot send signal {} to process group {}: {error}",
            signal.as_raw(),
            group.as_raw_nonzero()
        ),
    }
}

/// Reaps every ended child of this process that is in the group: its leader, and what the system gave
/// to this process because its own parent is gone (in a container without an init). Does not block.
pub(super) fn reap(group: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while let Ok(Some(_)) | Err(Errno::INTR) = waitid(WaitId::Pgid(Some(group)), options) {}
}

/// The processes that live in any of these groups; `None` where that cannot be found out.
#[cfg(target_os = "linux")]
pub(super) fn live_members(groups: &[Pid]) -> Option<Vec<i32>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc").ok()? {
        let entry = entry.ok()?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // One that ends meanwhile is no member.
        let Ok(stat) = fs::read(entry.path().join("stat")) else {
            continue;
        };
        let group = live_group(&stat);
        if groups
            .iter()
            .any(|known| group == Some(known.as_raw_nonzero().get()))
        {
            members.push(pid);
        }
    }
    Some(members)
}

/// The processes that live in any of these groups; `None` where that cannot be found out.
#[cfg(not(target_os = "linux"))]
pub(super) fn live_members(_groups: &[Pid]) -> Option<Vec<i32>> {
    None
}

/// The group of a process by its line in /proc; `None` when it has ended.
#[cfg(any(test, target_os = "linux"))]
fn live_group(stat: &[u8]) -> Option<i32> {
    // The name stands in parentheses and may hold anything, so count from its end: the state comes
    // next, then the parent, then the group.
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let text = str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = text.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_process_is_read_whatever_its_name() {
        let table: [(&[u8], _); 7] = [
            (b"7 (sh) S 1 42 42 0 -1", Some(42)),
            (b"7 (a) Z 9 9 (\xff b) D 1 42 42", Some(42)),
            (b"7 (sh) Z 1 42 42", None),
            (b"7 (sh) X 1 42 42", None),
            (b"7 (sh) S 1", None),
            (b"7 sh S 1 42", None),
            (b"", None),
        ];
        for (stat, group) in table {
            assert_eq!(live_group(stat), group, "{}", stat.escape_ascii());
        }
    }
}
