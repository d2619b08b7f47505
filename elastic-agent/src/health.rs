//! The health check: a command that must succeed before this node joins a round.
//!
//! Knows no rounds: the agent decides what a failed check means.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use c10d_socket::{BackoffOptions, Cancel, printable};
use crossbeam_channel::{Receiver, bounded, select_biased};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, getpid};

use crate::output::LastBytes;
use crate::sys;
use crate::threads::Cancelled;
use crate::worker::{ExitKind, Guardian, Remains, process_group, wait_for_exit};

/// The pauses after failed checks in a row. Many faults, such as a file system that is not mounted yet, disappear after
/// seconds; a broken device should not be asked all the time. With jitter, nodes with a common fault do not check at the
/// same moment.
pub(crate) fn pauses() -> BackoffOptions {
    BackoffOptions::default()
        .with_first(Duration::from_secs(10))
        .with_factor(2.0)
        .with_max(Duration::from_secs(300))
        .with_jitter(0.25)
}

/// A command that must succeed before this node joins a round.
///
/// ```
/// use std::time::Duration;
///
/// use elastic_agent::HealthCheck;
///
/// let check = HealthCheck::new("nvidia-smi > /dev/null").with_timeout(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    command: OsString,
    timeout: Duration,
}

impl HealthCheck {
    /// A check that takes longer delays every restart by more than most jobs accept.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

    /// A check by `command`, run by `/bin/sh -c`. Exit code 0 means healthy.
    #[must_use]
    pub fn new(command: impl Into<OsString>) -> Self {
        Self {
            command: command.into(),
            timeout: Self::DEFAULT_TIMEOUT,
        }
    }

    /// The text that `/bin/sh -c` runs.
    #[must_use]
    pub fn command(&self) -> &OsStr {
        &self.command
    }

    /// Returns how long the command may run.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets how long the command may run before it is killed and counts as failed. The default is
    /// [`DEFAULT_TIMEOUT`](Self::DEFAULT_TIMEOUT).
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

const WAITER: &str = "health-check";
const READER: &str = "health-check-output";

/// How long the system may take to remove a killed process, before this process continues without it.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// The longest last line that messages show.
const LINE_CHARS_MAX: usize = 200;

/// The reason why a node is not healthy.
#[derive(Debug)]
pub(crate) struct Unhealthy {
    how: How,
    /// The last bytes that the command wrote.
    output: Vec<u8>,
}

#[derive(Debug)]
enum How {
    NotStarted(io::Error),
    Exit(ExitKind),
    TimedOut(Duration),
}

impl Unhealthy {
    fn not_started(error: io::Error) -> Self {
        Self {
            how: How::NotStarted(error),
            output: Vec::new(),
        }
    }

    /// The end of the command's output.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output).trim_end().to_owned()
    }

    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.output);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        printable(line.unwrap_or_default(), LINE_CHARS_MAX).to_string()
    }
}

/// `its health check failed (exit code 3: no GPU)`, as the other nodes show it.
impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            How::NotStarted(error) => {
                return write!(f, "its health check could not be started: {error}");
            }
            How::Exit(exit) => write!(f, "its health check failed ({exit}")?,
            How::TimedOut(after) => {
                write!(f, "its health check failed (not finished within {after:?}")?
            }
        }
        let line = self.last_line();
        if !line.is_empty() {
            write!(f, ": {line}")?;
        }
        f.write_str(")")
    }
}

/// Runs the command with these variables besides this process's own. `None`: `stop` has ended it.
///
/// Blocks until the command ends, for at most its timeout and 5 s. When it returns, no process of the command's group is
/// left; if this process is killed meanwhile, they are killed too (Linux).
pub(crate) fn run(
    check: &HealthCheck,
    variables: &[(&str, &str)],
    stop: &Cancel,
) -> Option<Result<(), Unhealthy>> {
    let running = match Running::start(check, variables) {
        Ok(running) => running,
        Err(error) => return Some(Err(Unhealthy::not_started(error))),
    };
    let stop = Cancelled::of(stop);
    let ended = select_biased! {
        recv(stop.receiver) -> _ => None,
        recv(running.exit) -> exit => Some(How::Exit(exit.unwrap_or(ExitKind::Unknown))),
        default(check.timeout) => Some(How::TimedOut(check.timeout)),
    };
    let has_ended = matches!(ended, Some(How::Exit(_)));
    let output = running.end(has_ended);
    let how = ended?;
    if matches!(&how, How::Exit(exit) if exit.is_success()) {
        return Some(Ok(()));
    }
    Some(Err(Unhealthy { how, output }))
}

/// A command that runs.
struct Running {
    group: Pid,
    exit: Receiver<ExitKind>,
    waiter: JoinHandle<()>,
    reader: JoinHandle<Vec<u8>>,
    /// Closing it stops the reader, although a process may keep the output open.
    finish: io::PipeWriter,
    _guardian: Option<Guardian>,
}

impl Running {
    fn start(check: &HealthCheck, variables: &[(&str, &str)]) -> io::Result<Self> {
        let (output, writer) = io::pipe()?;
        ioctl_fionbio(&output, true)?;
        let (finish_seen, finish) = io::pipe()?;
        let reader = thread::Builder::new()
            .name(READER.to_owned())
            .spawn(move || read(output, &finish_seen))?;
        let (assign, assigned) = bounded(1);
        let (ended, exit) = bounded(1);
        let waiter = thread::Builder::new()
            .name(WAITER.to_owned())
            .spawn(move || {
                if let Ok(pid) = assigned.recv() {
                    let _ = ended.send(wait_for_exit(pid));
                }
            })?;
        // Without one the check still runs; only what it started could outlive a killed launcher.
        let guardian = Guardian::start(&Remains::NONE).ok();
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(&check.command)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        sys::lead_own_session(
            &mut command,
            getpid(),
            guardian.as_ref().map(Guardian::names),
        );
        let child = command.spawn()?;
        let group = Pid::from_child(&child);
        // The channel has room for one, and the thread lives until it has received one.
        let _ = assign.send(group);
        Ok(Self {
            group,
            exit,
            waiter,
            reader,
            finish,
            _guardian: guardian,
        })
    }

    /// Kills what is left of the group and reaps it. Returns the end of the output.
    fn end(self, has_ended: bool) -> Vec<u8> {
        process_group::signal(self.group, Signal::KILL);
        if has_ended || self.exit.recv_timeout(KILL_PATIENCE).is_ok() {
            if self.waiter.join().is_err() {
                log::error!("thread {WAITER} panicked");
            }
            process_group::reap(self.group);
        } else {
            log::error!(
                "the health check (pid {}) was killed {} s ago and has not exited; its processes may \
                 be waiting for a device",
                self.group.as_raw_nonzero(),
                KILL_PATIENCE.as_secs(),
            );
        }
        drop(self.finish);
        self.reader.join().unwrap_or_else(|_| {
            log::error!("thread {READER} panicked");
            Vec::new()
        })
    }
}

/// Reads until the output ends, or `finish` and there is nothing more at the moment.
fn read(mut output: PipeReader, finish: &PipeReader) -> Vec<u8> {
    let mut last = LastBytes::default();
    let mut buffer = [0; 4096];
    let mut is_finishing = false;
    // A process that left the group may write faster than this thread reads.
    let mut bytes_after_finish = buffer.len() * 16;
    loop {
        match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                last.push(&buffer[..count]);
                bytes_after_finish -= if is_finishing {
                    count.min(bytes_after_finish)
                } else {
                    0
                };
                if bytes_after_finish == 0 {
                    break;
                }
                // Before `finish`, poll after each read, so that it is noticed even if the output never pauses.
                if is_finishing {
                    continue;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_finishing => {}
            Err(_) => break,
        }
        let mut entries = [
            PollFd::from_borrowed_fd(finish.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN),
        ];
        match poll(&mut entries, None) {
            Ok(_) => is_finishing = !entries[0].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    last.to_vec()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Instant;

    use c10d_socket::Backoff;

    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(pauses(), seed);
            for interval in [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0] {
                let pause = backoff.next_delay().as_secs_f64();
                let range = interval * 0.749..=interval * 1.251;
                assert!(range.contains(&pause), "seed {seed}: {pause} of {interval}");
            }
        }
    }

    fn check(command: &str) -> HealthCheck {
        HealthCheck::new(command)
    }

    fn unhealthy(check: &HealthCheck) -> Unhealthy {
        run(check, &[], &Cancel::NEVER)
            .expect("not stopped")
            .expect_err("unhealthy")
    }

    /// Waits until the process whose number is in a file has exited.
    fn assert_ends(file: &Path) {
        let pid: i32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        let begun = Instant::now();
        while is_running(pid) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{pid:?} is left");
            thread::yield_now();
        }
    }

    /// An orphan may stay a zombie where process 1 does not reap.
    fn is_running(pid: Pid) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| {
            !stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .starts_with(" Z")
        })
    }

    #[test]
    fn a_failure_names_the_exit_code_and_the_last_line() {
        let lines = "echo one; echo 'no GPU' >&2; echo; exit 3";
        // Any amount of output is read, and its end is kept.
        let long = "yes 0123456789 | head -n 100000; echo the end; exit 1";
        for (command, why) in [
            (lines, "exit code 3: no GPU"),
            (long, "exit code 1: the end"),
            ("kill -s TERM $$", "SIGTERM"),
        ] {
            let failed = unhealthy(&check(command));
            let expected = format!("its health check failed ({why})");
            assert_eq!(failed.to_string(), expected);
            assert!(failed.output.len() <= 4096);
        }
        assert_eq!(unhealthy(&check(lines)).output(), "one\nno GPU");
    }

    #[test]
    fn a_line_without_end_stays_short() {
        let failed = unhealthy(&check("printf '\\033%5000s' x; exit 1"));
        let text = failed.to_string();
        assert!(text.len() < 300 && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!(
            "trap '' TERM; sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; echo waiting; wait",
            file.display()
        );
        let check = check(&script).with_timeout(Duration::from_secs(1));
        let failed = unhealthy(&check);
        let expected = "its health check failed (not finished within 1s: waiting)";
        assert_eq!(failed.to_string(), expected);
        assert_ends(&file);
    }

    #[test]
    fn what_a_healthy_command_leaves_behind_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!(
            "sleep 1000 & echo $! > {}; test \"$C10D_NODE\" = node7",
            file.display()
        );
        let variables = [("C10D_NODE", "node7")];
        let healthy = run(&check(&script), &variables, &Cancel::NEVER);
        assert!(matches!(healthy, Some(Ok(()))));
        assert_ends(&file);
    }

    #[test]
    fn output_that_a_process_of_another_session_keeps_open_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!(
            "setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000' & \
             until test -e {0}; do :; done; exit 2",
            file.display()
        );
        let failed = unhealthy(&check(&script));
        assert_eq!(failed.to_string(), "its health check failed (exit code 2)");
        let pid: i32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_stop_ends_the_command_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!(
            "echo $$ > {0}.new; mv {0}.new {0}; sleep 1000",
            file.display()
        );
        let stop = Cancel::new();
        let result = thread::scope(|scope| {
            let result = scope.spawn(|| run(&check(&script), &[], &stop));
            while !file.exists() {
                thread::yield_now();
            }
            stop.cancel();
            result.join().unwrap()
        });
        assert!(result.is_none());
        assert_ends(&file);
    }
}
