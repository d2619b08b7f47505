//! The process that kills the children of workers when the agent is killed.
//!
//! Linux kills a worker together with its agent, but not the worker's own children, such as data loaders: they would
//! keep memory and devices. A killed agent cannot clean up, so a small process waits for the agent's exit, kills the
//! children, and removes the agent's temporary files. It is a shell and not a fork of the agent, which would keep the
//! agent's memory and sockets.
//!
//! The guardian starts before the first worker, and each worker reports its process group before it
//! executes its program. So the guardian knows every group that can have a child. It does nothing while
//! the agent lives.

use std::io::{self, PipeReader, PipeWriter};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Standard input has a line for each process group, and is closed when the agent exits. Within milliseconds, the
/// system is unlikely to give a group id to other processes. The arguments are the fields of [`Remains`]; `rmdir`
/// leaves directories with files.
const SCRIPT: &str = "\
trap '' HUP INT QUIT TERM
logs=$1 above=$2 groups=
shift 2
while read -r group; do groups=\"$groups $group\"; done
for group in $groups; do kill -s KILL -- \"-$group\"; done
PATH=/bin:/usr/bin
if [ $# -gt 0 ]; then rm -rf -- \"$@\"; fi
if [ -n \"$logs\" ]; then rmdir -- \"$logs\"/*/* \"$logs\"/* \"$logs\" ${above:+\"$above\"}; fi";

/// The files that a guardian removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remains {
    /// Files and directories.
    pub(crate) temporary: Vec<PathBuf>,
    /// The log directory of the job: the directories in it that have no file, and itself.
    pub(crate) logs: Option<PathBuf>,
    /// The parent directory, if it is also temporary.
    pub(crate) above_logs: Option<PathBuf>,
}

impl Remains {
    pub(crate) const NONE: Self = Self {
        temporary: Vec::new(),
        logs: None,
        above_logs: None,
    };

    fn arguments(&self) -> impl Iterator<Item = &Path> {
        let logs = [&self.logs, &self.above_logs];
        let logs = logs.map(|path| path.as_deref().unwrap_or(Path::new("")));
        let temporary = self.temporary.iter().map(PathBuf::as_path);
        logs.into_iter().chain(temporary)
    }
}

/// A running guardian. Dropping it ends it without effect.
#[derive(Debug)]
pub(crate) struct Guardian {
    shell: Child,
    names: Arc<PipeWriter>,
    /// Never read: it prevents SIGPIPE in workers that report their group after the shell was killed.
    _reader: PipeReader,
}

impl Guardian {
    /// Starts a guardian, which kills the process groups reported to it, and then removes the remaining files, when
    /// this process exits without dropping it. Blocks until the shell is loaded, about a millisecond.
    ///
    /// # Errors
    /// The error of the operating system: `/bin/sh` does not exist, or no process or descriptor is left.
    pub(crate) fn start(remains: &Remains) -> io::Result<Self> {
        // Both ends are close-on-exec: a program that inherited one would keep the input open.
        let (reader, names) = io::pipe()?;
        // A stopped shell (SIGSTOP) must not block workers.
        rustix::io::ioctl_fionbio(&names, true)?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "elastic-guardian"])
            .args(remains.arguments())
            .env_clear()
            .current_dir("/")
            // Signals that a terminal or a caller sends to the agent's group must not reach the guardian.
            .process_group(0)
            .stdin(reader.try_clone()?)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        c10d_socket::restore_file_limit(&mut command);
        Ok(Self {
            shell: command.spawn()?,
            names: Arc::new(names),
            _reader: reader,
        })
    }

    /// The pipe to which each worker reports its process group, as a line. It never blocks: a line that
    /// does not fit is lost, which takes thousands of workers and a stopped shell.
    ///
    /// Writers must be done before the guardian is dropped.
    pub(crate) fn names(&self) -> Arc<PipeWriter> {
        Arc::clone(&self.names)
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Killed before its input closes, so that it kills no group.
        if let Err(error) = self.shell.kill().and_then(|()| self.shell.wait().map(drop)) {
            let pid = self.shell.id();
            log::warn!("cannot end the guardian process (pid {pid}): {error}");
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

    /// Has the effect of the end of this process.
    fn close_input(guardian: &mut Guardian) {
        let (_, elsewhere) = io::pipe().unwrap();
        guardian.names = Arc::new(elsewhere);
    }

    #[test]
    fn a_worker_reports_its_group_and_is_killed_when_the_input_ends() {
        let mut guardian = Guardian::start(&Remains::NONE).unwrap();
        let mut workers = [(); 3].map(|()| worker(&guardian, "sleep", &["1000"]));
        close_input(&mut guardian);
        assert!(guardian.shell.wait().unwrap().success());
        for worker in &mut workers {
            assert_eq!(worker.wait().unwrap().signal(), Some(9));
        }
    }

    #[test]
    fn temporary_files_are_removed_when_the_input_ends_and_not_by_a_drop() {
        let folder = tempfile::tempdir().unwrap();
        let temporary = ["a file", "-a directory"].map(|name| folder.path().join(name));
        std::fs::write(&temporary[0], "").unwrap();
        std::fs::create_dir_all(temporary[1].join("in it")).unwrap();
        let remains = Remains {
            temporary: temporary.to_vec(),
            ..Remains::NONE
        };
        drop(Guardian::start(&remains).unwrap());
        assert!(temporary.iter().all(|path| path.exists()));
        let mut guardian = Guardian::start(&remains).unwrap();
        close_input(&mut guardian);
        assert!(guardian.shell.wait().unwrap().success());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn log_directories_without_files_are_removed_when_the_input_ends() {
        let folder = tempfile::tempdir().unwrap();
        let above = folder.path().join("-above of $(its) \"job\"");
        let logs = above.join("a job");
        let worker = |round: &str, local_rank: &str| {
            let directory = logs.join(round).join(local_rank);
            std::fs::create_dir_all(&directory).unwrap();
            directory
        };
        let remains = Remains {
            logs: Some(logs.clone()),
            above_logs: Some(above.clone()),
            ..Remains::NONE
        };
        let killed = || {
            let mut guardian = Guardian::start(&remains).unwrap();
            close_input(&mut guardian);
            guardian.shell.wait().unwrap();
        };
        let with_file = worker("attempt_0", "1").join("error.json");
        std::fs::write(&with_file, "").unwrap();
        let empty = [worker("attempt_0", "0"), worker("attempt_0.1", "0")];
        killed();
        assert!(with_file.exists() && !empty.iter().any(|path| path.exists()));
        assert!(!logs.join("attempt_0.1").exists());
        std::fs::remove_file(with_file).unwrap();
        killed();
        assert!(!above.exists() && folder.path().exists());
        // A directory that is not temporary stays.
        worker("attempt_0", "0");
        let mut guardian = Guardian::start(&Remains {
            above_logs: None,
            ..remains
        })
        .unwrap();
        close_input(&mut guardian);
        guardian.shell.wait().unwrap();
        assert!(!logs.exists() && above.exists());
    }

    #[test]
    fn a_dropped_guardian_kills_no_worker() {
        let guardian = Guardian::start(&Remains::NONE).unwrap();
        let mut worker = worker(&guardian, "sleep", &["1000"]);
        drop(guardian);
        kill_process(Pid::from_child(&worker), Signal::USR1).unwrap();
        let status = worker.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::USR1.as_raw()));
    }

    #[test]
    fn termination_signals_do_not_end_the_guardian() {
        let mut guardian = Guardian::start(&Remains::NONE).unwrap();
        let mut worker = worker(&guardian, "sleep", &["1000"]);
        // The shell reads after it has set its traps.
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
    fn workers_start_without_a_guardian() {
        let mut guardian = Guardian::start(&Remains::NONE).unwrap();
        guardian.shell.kill().unwrap();
        guardian.shell.wait().unwrap();
        assert!(worker(&guardian, "true", &[]).wait().unwrap().success());
    }

    #[test]
    fn workers_start_when_the_guardian_does_not_read() {
        let mut guardian = Guardian::start(&Remains::NONE).unwrap();
        guardian.shell.kill().unwrap();
        guardian.shell.wait().unwrap();
        while (&*guardian.names).write(&[b'\n'; 1024]).is_ok() {}
        assert!(worker(&guardian, "true", &[]).wait().unwrap().success());
    }
}
