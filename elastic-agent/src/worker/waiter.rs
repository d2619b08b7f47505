//! The thread that notices the exit of a worker.
//!
//! It does not reap the process: until then no other process or group can get its id, so signals to it
//! reach no other process.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::outcome::{ExitKind, WorkerExit};

/// Called when a worker has exited.
pub(super) type OnExit = Arc<dyn Fn(WorkerExit) + Send + Sync>;

/// The worker at this position of the group has exited.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) index: usize,
    pub(super) exit: ExitKind,
    pub(super) at: SystemTime,
}

/// The process that a waiter waits for.
pub(super) struct Assigned {
    pub(super) pid: Pid,
    pub(super) local_rank: usize,
    pub(super) rank: usize,
    pub(super) on_exit: OnExit,
}

/// A thread `worker-wait`, which waits for one process.
///
/// Ends with the process, or at once if it is dropped before it is assigned one. A process that the system
/// cannot end keeps the thread, which is then detached.
#[derive(Debug)]
pub(super) struct Waiter {
    assign: Sender<Assigned>,
    thread: JoinHandle<()>,
}

impl Waiter {
    /// Starts the thread, before its process: so no process lacks one when the system has no thread left.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(index: usize, ended: Sender<Ended>) -> io::Result<Self> {
        let (assign, assigned) = bounded(1);
        let thread = thread::Builder::new()
            .name("worker-wait".to_owned())
            .spawn(move || run(index, &assigned, &ended))?;
        Ok(Self { assign, thread })
    }

    /// Assigns the process. Its exit is reported to the group first, then to `on_exit`.
    pub(super) fn assign(&self, process: Assigned) {
        // The channel has room for one, and the thread lives until it has received one.
        let _ = self.assign.try_send(process);
    }

    /// Joins the thread. Blocks until its process ends; not at all without a process.
    pub(super) fn join(self) {
        drop(self.assign);
        if self.thread.join().is_err() {
            log::error!("thread worker-wait panicked");
        }
    }
}

fn run(index: usize, assigned: &Receiver<Assigned>, ended: &Sender<Ended>) {
    let Ok(process) = assigned.recv() else {
        return;
    };
    let exit = wait_for_exit(process.pid);
    let at = SystemTime::now();
    if ended.send(Ended { index, exit, at }).is_err() {
        // The group has abandoned the process, so this thread reaps it.
        wait(process.pid, WaitIdOptions::NOHANG);
        return;
    }
    (process.on_exit)(WorkerExit {
        local_rank: process.local_rank,
        rank: process.rank,
        pid: process.pid.as_raw_nonzero().get().cast_unsigned(),
        exit,
        ended_at: at,
    });
}

/// Waits until a child of this process has exited, without reaping it. Blocks for as long as it runs.
pub(crate) fn wait_for_exit(pid: Pid) -> ExitKind {
    wait(pid, WaitIdOptions::NOWAIT)
}

fn wait(pid: Pid, options: WaitIdOptions) -> ExitKind {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | options) {
            Ok(Some(status)) => return ExitKind::of(&status),
            Ok(None) | Err(Errno::INTR) if !options.contains(WaitIdOptions::NOHANG) => {}
            Ok(None) => return ExitKind::Unknown,
            Err(error) => {
                log::error!("cannot wait for process {}: {error}", pid.as_raw_nonzero());
                return ExitKind::Unknown;
            }
        }
    }
}
