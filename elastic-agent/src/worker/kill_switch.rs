//! Escalates a graceful stop to SIGKILL.

use std::sync::{Arc, Mutex};

use c10d_socket::Cancel;
use rustix::process::{Pid, Signal};

use super::process_group::{self, NotSent};
use crate::threads::lock;

/// Lets another thread cut a [`WorkerGroup::stop`] short and kill the workers at once, as after a second
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

    /// Kills the workers of the [`WorkerGroup::stop`] that uses the switch, on this thread, and ends all grace periods,
    /// now and later. An agent's switch kills its workers also before it stops them. Does not block. Not for use inside
    /// a signal handler, as it takes a lock.
    ///
    /// [`WorkerGroup::stop`]: crate::WorkerGroup::stop
    pub fn trigger(&self) {
        // First: a group that is covered after the lock was held is killed there.
        self.cancel.cancel();
        let groups = lock(&self.groups);
        // Killing under the lock: no group is reaped meanwhile.
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
    let sent = groups
        .iter()
        .map(|group| process_group::send(*group, Signal::KILL));
    sent.filter_map(Result::err).collect()
}

fn log_failed(failed: Vec<NotSent>) {
    for error in failed {
        log::warn!("{error}");
    }
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
        // A worker that starts meanwhile.
        switch.cover(late.1);
        assert_eq!(signal_that_ended(late.0), Some(9));
        kill_process(released.1, Signal::USR1).unwrap();
        assert_eq!(signal_that_ended(released.0), Some(Signal::USR1.as_raw()));
    }
}
