//! Process groups: signals all processes of a worker, finds the remaining processes, and kills all groups at once.
//!
//! A group's id is the process id of its leader, the worker. It is safe to use until the worker is reaped.

#[cfg(target_os = "linux")]
use std::fs;
use std::sync::{Arc, Mutex};

use c10d_socket::Cancel;
#[cfg(target_os = "linux")]
use c10d_socket::ProcessStat;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

#[cfg(target_os = "linux")]
use crate::sys;
use crate::threads::lock;
use crate::wording::name_of;

/// Lets another thread cut a [`WorkerGroup::stop`] short and kill the workers at once, for example after a second
/// Ctrl-C. Once triggered, it stays so. Clones are the same switch.
///
/// [`WorkerGroup::stop`]: crate::WorkerGroup::stop
///
/// ```
/// use elastic_agent::KillSwitch;
///
/// let kill_switch = KillSwitch::new();
/// let signals = kill_switch.clone();
/// assert!(!kill_switch.is_triggered());
/// signals.trigger();
/// assert!(kill_switch.is_triggered());
/// ```
#[derive(Debug, Clone)]
pub struct KillSwitch {
    /// The process groups to kill. Each is the id of a worker that is not reaped, so that no other process has it.
    groups: Arc<Mutex<Vec<Pid>>>,
    cancel: Cancel,
}

impl KillSwitch {
    /// A switch that is not triggered.
    #[must_use]
    pub fn new() -> Self {
        Self {
            groups: Arc::default(),
            cancel: Cancel::new(),
        }
    }

    /// Kills the workers of the [`WorkerGroup::stop`] that uses the switch, on this thread, and cuts short every grace
    /// period, now and later. An agent's switch kills its workers even before it stops them. Does not block. Not for use inside
    /// a signal handler, because it takes a lock.
    ///
    /// [`WorkerGroup::stop`]: crate::WorkerGroup::stop
    pub fn trigger(&self) {
        // First: a group that is covered after the lock was held is killed there.
        self.cancel.cancel();
        let groups = lock(&self.groups);
        // Killing under the lock: in the meantime no group is reaped.
        let failed = kill(&groups);
        drop(groups);
        log_failed(failed);
    }

    /// Puts the process group of a worker under the switch; kills it at once if the switch is triggered.
    pub(super) fn cover(&self, group: Pid) {
        let mut groups = lock(&self.groups);
        groups.push(group);
        let failed = if self.is_triggered() {
            kill(&[group])
        } else {
            Vec::new()
        };
        drop(groups);
        log_failed(failed);
    }

    /// The reverse of [`cover`](Self::cover), before the worker is reaped.
    pub(super) fn release(&self, group: Pid) {
        lock(&self.groups).retain(|covered| *covered != group);
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.groups, &other.groups)
    }

    /// Whether [`trigger`](Self::trigger) was called.
    #[must_use]
    pub fn is_triggered(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Ends waits when the switch is triggered.
    pub(crate) const fn cancel(&self) -> &Cancel {
        &self.cancel
    }
}

impl Default for KillSwitch {
    fn default() -> Self {
        Self::new()
    }
}

/// Kills process groups; returns those for which it failed.
fn kill(groups: &[Pid]) -> Vec<NotSent> {
    let sent = groups.iter().map(|group| send(*group, Signal::KILL));
    sent.filter_map(Result::err).collect()
}

fn log_failed(failed: Vec<NotSent>) {
    for error in failed {
        log::warn!("{error}");
    }
}

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

/// Sends a signal like [`signal`], without a log.
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
        let name = entry.ok()?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The state is read of members only: it takes nine system calls, and a restart waits for all of them.
        let is_in = |group| groups.contains(&group);
        let is_member = Pid::from_raw(pid)
            .and_then(sys::group_of)
            .is_some_and(is_in);
        let state = is_member.then(|| ProcessStat::of(pid.unsigned_abs()));
        // Without a state, the process has ended in the meantime. A state with a different group is a different process: its
        // id was used again, or /proc belongs to a different container.
        let is_live = |stat: ProcessStat| {
            let group = i32::try_from(stat.group).ok().and_then(Pid::from_raw);
            !stat.has_ended() && group.is_some_and(is_in)
        };
        if state.flatten().is_some_and(is_live) {
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    use rustix::process::kill_process;

    use super::*;

    fn worker() -> (Child, Pid) {
        let child = Command::new("sleep")
            .arg("1000")
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    fn signal_that_ended(mut child: Child) -> Option<i32> {
        child.wait().unwrap().signal()
    }

    #[test]
    fn the_thread_that_triggers_it_kills_the_workers_itself() {
        let switch = KillSwitch::new();
        let (early, late, released) = (worker(), worker(), worker());
        switch.cover(early.1);
        switch.cover(released.1);
        switch.release(released.1);
        switch.trigger();
        assert_eq!(signal_that_ended(early.0), Some(9));
        // A worker that starts after the trigger.
        switch.cover(late.1);
        assert_eq!(signal_that_ended(late.0), Some(9));
        kill_process(released.1, Signal::USR1).unwrap();
        assert_eq!(signal_that_ended(released.0), Some(Signal::USR1.as_raw()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_waits_to_be_reaped_is_no_live_member() {
        let (first, second) = (worker(), worker());
        let groups = [first.1, second.1];
        let live = || {
            let mut members = live_members(&groups).unwrap();
            members.sort_unstable();
            members
        };
        let mut both = groups.map(|group| group.as_raw_nonzero().get());
        both.sort_unstable();
        assert_eq!(live(), both);
        send(first.1, Signal::KILL).unwrap();
        let not_reaped = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(first.1), not_reaped).unwrap();
        assert_eq!(live(), [second.1.as_raw_nonzero().get()]);
        send(second.1, Signal::KILL).unwrap();
        assert_eq!(signal_that_ended(first.0), Some(9));
        assert_eq!(signal_that_ended(second.0), Some(9));
        assert_eq!(live(), [0; 0]);
    }
}
