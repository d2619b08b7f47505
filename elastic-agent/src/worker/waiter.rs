//! The thread that notices at once when a worker ends.
//!
//! It leaves the ended process as it is: until somebody reaps it, no other process can have its id,
//! nor can another group, so that signals to them hit nobody else.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::exit::{ExitKind, WorkerExit};

/// What is called when a worker has ended.
pub(super) type OnExit = Arc<dyn Fn(WorkerExit) + Send + Sync>;

/// Says that the worker at this position in the group has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) index: usize,
    pub(super) exit: ExitKind,
    pub(super) at: SystemTime,
}

/// Whom to wait for, once it is started.
pub(super) struct Assigned {
    pub(super) pid: Pid,
    pub(super) local_rank: usize,
    pub(super) rank: usize,
    pub(super) on_exit: OnExit,
}

/// A thread `worker-wait`, which waits for one process.
///
/// Ends with the process, or at once when it is dropped before it has one. A process that the system
/// cannot end holds the thread, which is then left behind.
#[derive(Debug)]
pub(super) struct Waiter {
    assign: Sender<Assigned>,
    thread: JoinHandle<()>,
}

impl Waiter {
    /// Starts the thread. Started before its process, so that no process is ever without one.
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

    /// Gives it its process. The end of the process is told to the group first, then to `on_exit`.
    pub(super) fn assign(&self, process: Assigned) {
        // There is room for one, and the thread ends only after it has taken one.
        let _ = self.assign.try_send(process);
    }

    /// Ends the thread. Blocks until its process ends, or not at all if it has none or has ended.
    pub(super) fn join(self) {
        drop(self.assign);
        if self.thread.join().is_err() {
            log::error!("the thread that waits for a worker ended by a panic");
        }
    }
}

fn run(index: usize, assigned: &Receiver<Assigned>, ended: &Sender<Ended>) {
    let Ok(process) = assigned.recv() else {
        return;
    };
    let exit = wait(process.pid, WaitIdOptions::NOWAIT);
    let at = SystemTime::now();
    if ended.send(Ended { index, exit, at }).is_err() {
        // The group has given the process up. Nobody else reaps it.
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

fn wait(pid: Pid, options: WaitIdOptions) -> ExitKind {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | options) {
            Ok(Some(status)) => return exit_kind(&status),
            Ok(None) | Err(Errno::INTR) if !options.contains(WaitIdOptions::NOHANG) => {}
            Ok(None) => return ExitKind::Unknown,
            Err(error) => {
                log::error!("cannot wait for process {}: {error}", pid.as_raw_nonzero());
                return ExitKind::Unknown;
            }
        }
    }
}

fn exit_kind(status: &WaitIdStatus) -> ExitKind {
    if let Some(code) = status.exit_status() {
        return ExitKind::Code(code);
    }
    match status.terminating_signal() {
        Some(number) => ExitKind::Signal {
            number,
            has_dumped_core: status.dumped(),
        },
        None => ExitKind::Unknown,
    }
}
