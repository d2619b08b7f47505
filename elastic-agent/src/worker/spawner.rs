//! The thread that starts worker processes.
//!
//! Linux kills a worker when the *thread* that started it ends. So one thread starts all workers of a
//! group, and lives as long as they do.

use std::io;
use std::process::{Child, Command};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::threads::JoinedThread;

/// The thread `worker-spawn`. Dropping ends it, and on Linux the workers that it started.
#[derive(Debug)]
pub(super) struct Spawner {
    /// Dropping it ends the thread, so it comes first.
    commands: Sender<Command>,
    children: Receiver<io::Result<Child>>,
    _thread: JoinedThread,
}

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start() -> io::Result<Self> {
        let (commands, next) = bounded::<Command>(0);
        let (answers, children) = bounded(1);
        let thread = JoinedThread::start("worker-spawn", move || {
            for mut command in next {
                // Dropping the command closes this process's copies of the worker's streams.
                let child = command.spawn();
                drop(command);
                if answers.send(child).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            commands,
            children,
            _thread: thread,
        })
    }

    /// Starts a process. Blocks until its program is loaded, or has failed to load.
    ///
    /// # Errors
    /// Those of the system: the program does not exist, or no process is left.
    pub(super) fn spawn(&self, command: Command) -> io::Result<Child> {
        let has_ended = || io::Error::other("the thread worker-spawn has ended");
        self.commands.send(command).map_err(|_| has_ended())?;
        self.children.recv().map_err(|_| has_ended())?
    }
}
