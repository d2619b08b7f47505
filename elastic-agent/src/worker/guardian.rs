//! The process that ends the workers' own children when the agent is killed.
//!
//! Linux kills a worker together with its agent, but not what the worker has started, such as
//! processes that load data: they would stay, and hold memory and devices. An agent that is killed can
//! do nothing about it, so a small process waits for just that. It is a shell rather than a copy of
//! the agent, which would keep the agent's memory and sockets.
//!
//! It is there before the first worker, and each worker names itself before it executes its program. So
//! there is no moment in which a worker could have started something that the guardian does not know.
//! It does nothing while the agent lives: stopping workers is left to their group.

use std::io::{self, PipeReader, PipeWriter};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Its standard input has a line for each process group, and ends when the agent does. The group ids
/// can hardly have been given to others by then, as no more than milliseconds have passed.
const SCRIPT: &str = "\
trap '' HUP INT QUIT TERM
groups=
while read -r group; do groups=\"$groups $group\"; done
for group in $groups; do kill -s KILL -- \"-$group\"; done";

/// A running guardian; dropping it ends it, and leaves the groups alone.
#[derive(Debug)]
pub(super) struct Guardian {
    shell: Child,
    names: Arc<PipeWriter>,
    /// Never read: with it, writing a name raises no SIGPIPE when somebody has killed the shell.
    _reader: PipeReader,
}

impl Guardian {
    /// Has the process groups that are named to it killed when this process ends without having
    /// dropped the guardian. Blocks until the shell is loaded, about a millisecond.
    ///
    /// # Errors
    /// Those of the system: there is no `/bin/sh`, or no process or descriptor left.
    pub(super) fn start() -> io::Result<Self> {
        // No program that this process executes inherits an end, or the input would not end.
        let (reader, names) = io::pipe()?;
        // A shell that somebody has stopped must not hold up workers.
        rustix::io::ioctl_fionbio(&names, true)?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "elastic-guardian"])
            .env_clear()
            .current_dir("/")
            // What a terminal or a caller sends to the agent's group is not for the guardian.
            .process_group(0)
            .stdin(reader.try_clone()?)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self {
            shell: command.spawn()?,
            names: Arc::new(names),
            _reader: reader,
        })
    }

    /// Where the groups are named, each by its leader, in a line. Does not block, and loses what there
    /// is no room for: thousands of names that a shell which somebody has stopped does not read.
    ///
    /// To be written to while the guardian lives.
    pub(super) fn names(&self) -> Arc<PipeWriter> {
        Arc::clone(&self.names)
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Killed before its input is closed, so that it does nothing.
        if let Err(error) = self.shell.kill().and_then(|()| self.shell.wait().map(drop)) {
            let pid = self.shell.id();
            log::warn!("cannot end the guardian process {pid}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, getpid, kill_process};

    use super::*;
    use crate::sys;

    fn worker(guardian: &Guardian, program: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(program);
        sys::lead_own_session(&mut command, getpid(), Some(guardian.names()));
        command.args(arguments).spawn().unwrap()
    }

    /// What the end of this process would do.
    fn close_input(guardian: &mut Guardian) {
        let (_, elsewhere) = io::pipe().unwrap();
        guardian.names = Arc::new(elsewhere);
    }

    #[test]
    fn a_worker_names_itself_and_is_killed_at_the_end_of_the_input() {
        let mut guardian = Guardian::start().unwrap();
        let mut workers = [(); 3].map(|()| worker(&guardian, "sleep", &["1000"]));
        close_input(&mut guardian);
        assert!(guardian.shell.wait().unwrap().success());
        for worker in &mut workers {
            assert_eq!(worker.wait().unwrap().signal(), Some(9));
        }
    }

    #[test]
    fn a_guardian_that_is_dropped_leaves_workers_alone() {
        let guardian = Guardian::start().unwrap();
        let mut worker = worker(&guardian, "sleep", &["1000"]);
        drop(guardian);
        kill_process(Pid::from_child(&worker), Signal::USR1).unwrap();
        let status = worker.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::USR1.as_raw()));
    }

    #[test]
    fn signals_that_ask_to_end_do_not_end_it() {
        let mut guardian = Guardian::start().unwrap();
        let mut worker = worker(&guardian, "sleep", &["1000"]);
        // It has set its traps when it has read a name.
        let started = Instant::now();
        while rustix::io::ioctl_fionread(&guardian._reader).unwrap() > 0 {
            assert!(started.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM] {
            kill_process(Pid::from_child(&guardian.shell), signal).unwrap();
        }
        close_input(&mut guardian);
        assert!(guardian.shell.wait().unwrap().success());
        assert_eq!(worker.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn workers_start_when_the_guardian_is_gone() {
        let mut guardian = Guardian::start().unwrap();
        guardian.shell.kill().unwrap();
        guardian.shell.wait().unwrap();
        assert!(worker(&guardian, "true", &[]).wait().unwrap().success());
    }

    #[test]
    fn workers_start_when_the_guardian_reads_nothing() {
        let mut guardian = Guardian::start().unwrap();
        guardian.shell.kill().unwrap();
        guardian.shell.wait().unwrap();
        while (&*guardian.names).write(&[b'\n'; 1024]).is_ok() {}
        assert!(worker(&guardian, "true", &[]).wait().unwrap().success());
    }
}
