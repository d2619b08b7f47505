//! The thread that starts worker processes.
//!
//! Linux ends a worker when the thread that started it ends, not the process. So all workers of a
//! group are started by one thread, which lives as long as they do.

use std::io;
use std::process::{Child, Command};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

/// The thread `worker-spawn`. Ends when dropped, and with it, on Linux, what it has started.
#[derive(Debug)]
pub(super) struct Spawner {
    commands: Option<Sender<Command>>,
    children: Receiver<io::Result<Child>>,
    thread: Option<JoinHandle<()>>,
}

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start() -> io::Result<Self> {
        let (commands, next) = bounded::<Command>(0);
        let (answers, children) = bounded(1);
        let thread = thread::Builder::new()
            .name("worker-spawn".to_owned())
            .spawn(move || {
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
            commands: Some(commands),
            children,
            thread: Some(thread),
        })
    }

    /// Starts a process. Blocks until the program is loaded, or is known not to be.
    ///
    /// # Errors
    /// Those of the system: there is no such program, or no process left.
    pub(super) fn spawn(&self, command: Command) -> io::Result<Child> {
        let is_gone = || io::Error::other("the thread that starts workers is gone");
        let commands = self.commands.as_ref().ok_or_else(is_gone)?;
        commands.send(command).map_err(|_| is_gone())?;
        self.children.recv().map_err(|_| is_gone())?
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that starts workers ended by a panic");
        }
    }
}
