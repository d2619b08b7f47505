//! Process groups: signals all processes of a worker, and finds those that are left.
//!
//! A group's id is the process id of its leader, the worker. It is safe to use until the worker is reaped.

#[cfg(target_os = "linux")]
use std::fs;

#[cfg(target_os = "linux")]
use c10d_socket::ProcessStat;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use crate::wording::name_of;

/// A signal that could not be sent.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot send {} to process group {}: {source}",
    name_of(signal.as_raw()),
    group.as_raw_nonzero()
)]
pub(super) struct NotSent {
    group: Pid,
    signal: Signal,
    source: Errno,
}

/// Sends a signal to every process of a group, and logs a failure. An empty group is not an error.
pub(crate) fn signal(group: Pid, signal: Signal) {
    if let Err(error) = send(group, signal) {
        log::warn!("{error}");
    }
}

/// Sends a signal to the leader of a group alone, and logs a failure. A leader that has exited is not an error.
pub(super) fn signal_leader(leader: Pid, signal: Signal) {
    match kill_process(leader, signal) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(source) => log::warn!(
            "cannot send {} to process {}: {source}",
            name_of(signal.as_raw()),
            leader.as_raw_nonzero()
        ),
    }
}

/// As [`signal`], without a log.
pub(super) fn send(group: Pid, signal: Signal) -> Result<(), NotSent> {
    match kill_process_group(group, signal) {
        // Systems differ in the error for a group whose processes have all ended.
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(Errno::PERM) if cfg!(not(target_os = "linux")) => Ok(()),
        Err(source) => Err(NotSent {
            group,
            signal,
            source,
        }),
    }
}

/// Reaps every ended child of this process in the group: its leader, and orphans that the system gave to
/// this process (in a container without an init). Does not block.
pub(crate) fn reap(group: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while let Ok(Some(_)) | Err(Errno::INTR) = waitid(WaitId::Pgid(Some(group)), options) {}
}

/// The live processes in any of these groups; `None` where the system does not list processes.
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
        // The process ended meanwhile.
        let Ok(stat) = fs::read(entry.path().join("stat")) else {
            continue;
        };
        let group = ProcessStat::parse(&stat).filter(|stat| !stat.has_ended());
        let is_in = |known: &Pid| {
            group.is_some_and(|it| i32::try_from(it.group) == Ok(known.as_raw_nonzero().get()))
        };
        if groups.iter().any(is_in) {
            members.push(pid);
        }
    }
    Some(members)
}

/// The live processes in any of these groups; `None` where the system does not list processes.
#[cfg(not(target_os = "linux"))]
pub(super) fn live_members(_groups: &[Pid]) -> Option<Vec<i32>> {
    None
}
