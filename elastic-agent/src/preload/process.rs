//! The process of a template.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Deadline, ProcessStat};
use rustix::io::ioctl_fionbio;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{
    Pid, Signal, WaitId, child_subreaper, getpid, kill_process, kill_process_group,
    set_child_subreaper,
};

use super::forks::{is_living_child, reap};
use super::options::TemplatePlan;
use super::packet;
use crate::sys;
use crate::threads::lock;
use crate::wording::{OUT_OF_MEMORY, name_of};

/// The program that the interpreter gets on its command line: it reads the next one from standard input.
const STUB: &str = "exec(compile(__import__('os').read(0,262144),'<c10d preload>','exec'),{'__name__':'<c10d preload>'})";

const BOOTSTRAP: &str = include_str!("bootstrap.py");

/// Room for the command lines of workers, which overwrite the template's.
const TITLE_BYTES: usize = 2048;

/// How long a template may take to remove the temporary files of its imports.
const CLEANUP_MAX: Duration = Duration::from_millis(300);
const CLEANUP_POLL: Duration = Duration::from_millis(1);

/// How long a killed template may take to end. It can have gigabytes of memory.
const KILL_WAIT_MAX: Duration = Duration::from_secs(10);

/// A running template. Linux kills it when the thread that has started it ends.
#[derive(Debug)]
pub(super) struct Template {
    pid: Pid,
    control: OwnedFd,
    output: PipeReader,
}

impl Template {
    /// Starts the interpreter, and tells it what to import.
    ///
    /// # Errors
    /// The error of the operating system: the interpreter does not exist, or no process or descriptor is left.
    pub(super) fn spawn(plan: &TemplatePlan) -> io::Result<Self> {
        let (control, far) = packet::pair()?;
        let (output, writer) = io::pipe()?;
        ioctl_fionbio(&output, true)?;
        let launcher = getpid();
        packet::send_at_once(control.as_fd(), BOOTSTRAP.as_bytes(), &[])?;
        let config = packet::config(plan, launcher.as_raw_nonzero().get());
        packet::send_at_once(control.as_fd(), &config, &[])?;
        let mut command = Command::new(&plan.program);
        let variables = plan.environment.iter();
        command
            .args(["-u", "-c", STUB, &" ".repeat(TITLE_BYTES)])
            .env_clear()
            .envs(variables.map(|(name, value)| (name, value)))
            .stdin(far)
            .stdout(writer.try_clone()?)
            .stderr(writer);
        // A signal from a terminal must not reach it.
        sys::lead_own_session(&mut command, launcher, None);
        let child = command.spawn()?;
        Ok(Self {
            pid: Pid::from_child(&child),
            control,
            output,
        })
    }

    /// The socket for packets.
    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Returns the output of the template and its imports. Reading it does not block.
    pub(super) const fn output(&self) -> &PipeReader {
        &self.output
    }

    /// Whether a signal has stopped the process, as SIGSTOP does.
    pub(super) fn is_stopped(&self) -> bool {
        let pid = self.pid.as_raw_nonzero().get().unsigned_abs();
        ProcessStat::of(pid).is_some_and(|stat| stat.is_stopped())
    }

    /// Lets a template that waits for a request remove the temporary files of its imports, and [ends](Self::end) it.
    /// Blocks for up to 0.3 s longer than that.
    pub(super) fn close(self, has_group: bool) {
        let _ = shutdown(&self.control, Shutdown::Both);
        let deadline = Deadline::after(Instant::now(), CLEANUP_MAX);
        while is_living_child(self.pid) && !deadline.has_passed(Instant::now()) {
            thread::sleep(CLEANUP_POLL);
        }
        self.end(has_group);
    }

    /// Kills it, and with its process group what it or an import has started. Returns how it ended. Blocks until then,
    /// for at most 10 s.
    ///
    /// Workers that were handed out are in the group until they run, and do not need the template.
    pub(super) fn end(self, has_group: bool) -> String {
        // The process id is safe, because nothing else reaps the process.
        let _ = kill_process(self.pid, Signal::KILL);
        if has_group {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        let mut how = "its exit status is unknown".to_owned();
        let deadline = Deadline::after(Instant::now(), KILL_WAIT_MAX);
        reap(WaitId::Pid(self.pid), deadline, |status| {
            if let Some(code) = status.exit_status() {
                how = format!("exit code {code}");
            } else if let Some(signal) = status.terminating_signal() {
                how = name_of(signal).into_owned();
                // Unless the kill above did it, after the template had closed its end.
                if signal == Signal::KILL.as_raw() {
                    how.push_str(OUT_OF_MEMORY);
                }
            }
        });
        if has_group {
            reap(WaitId::Pgid(Some(self.pid)), deadline, |_| ());
        }
        how
    }
}

/// Makes this process the parent of orphaned descendants until it is dropped.
///
/// Only while workers are forked: at other times, the orphans of running workers belong to the system's first process.
/// The setting is the whole process's, so that agents of one process count their needs.
#[derive(Debug)]
pub(super) struct Subreaper;

/// The number of users of the setting, and its value before the first user.
static SUBREAPERS: Mutex<(usize, Option<Pid>)> = Mutex::new((0, None));

impl Subreaper {
    /// # Errors
    /// The error of the operating system, if it does not support this setting.
    pub(super) fn set() -> io::Result<Self> {
        let mut subreapers = lock(&SUBREAPERS);
        if subreapers.0 == 0 {
            subreapers.1 = child_subreaper()?;
            set_child_subreaper(Some(getpid()))?;
        }
        subreapers.0 += 1;
        Ok(Self)
    }
}

impl Drop for Subreaper {
    fn drop(&mut self) {
        let mut subreapers = lock(&SUBREAPERS);
        subreapers.0 -= 1;
        if subreapers.0 == 0
            && let Err(error) = set_child_subreaper(subreapers.1)
        {
            log::warn!("cannot stop being the parent of orphaned processes: {error}");
        }
    }
}
