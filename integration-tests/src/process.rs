//! Child processes that are killed when their test ends.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

/// The running child processes by id, with their names and the last lines of their standard error, for [`kill_all`].
static RUNNING: Mutex<BTreeMap<u32, (String, Lines)>> = Mutex::new(BTreeMap::new());

type Lines = Arc<Mutex<Vec<String>>>;

/// The number of last lines of a child's standard error that are kept for messages.
const STDERR_LINES_MAX: usize = 100;

/// A child process with pipes as standard streams. Drop kills it.
pub struct ChildProcess {
    child: Child,
    what: String,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Lines,
    stderr_reader: JoinHandle<()>,
}

impl ChildProcess {
    /// Starts `command`; `what` names it in messages.
    ///
    /// # Panics
    /// When the process cannot be started.
    #[must_use]
    pub fn start(what: impl Into<String>, command: &mut Command) -> Self {
        let what = what.into();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {what} ({command:?}): {error}"));
        let stderr = Lines::default();
        lock(&RUNNING).insert(child.id(), (what.clone(), Arc::clone(&stderr)));
        let stderr_pipe = child.stderr.take().expect("stderr was piped");
        let kept = Arc::clone(&stderr);
        let stderr_reader = thread::Builder::new()
            .name("stderr".to_owned())
            .spawn(move || keep_lines(stderr_pipe, &kept))
            .expect("a thread for the child's stderr");
        Self {
            what,
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(BufReader::new),
            child,
            stderr,
            stderr_reader,
        }
    }

    /// The name given to [`start`](Self::start).
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Takes the standard input of the child. Drop closes it.
    ///
    /// # Panics
    /// When called a second time.
    pub fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().expect("stdin is taken once")
    }

    /// Takes the standard output of the child.
    ///
    /// # Panics
    /// When called a second time.
    pub fn take_stdout(&mut self) -> BufReader<ChildStdout> {
        self.stdout.take().expect("stdout is taken once")
    }

    /// Reads the next line of standard output, without the line end.
    ///
    /// Blocks without a timeout.
    ///
    /// # Panics
    /// When standard output ends before a line, or was taken.
    pub fn read_line(&mut self) -> String {
        let stdout = self.stdout.as_mut().expect("stdout was not taken");
        let mut line = String::new();
        let read = stdout.read_line(&mut line);
        if !matches!(read, Ok(1..)) {
            panic!(
                "{} ended without the expected line ({read:?}); its stderr:\n{}",
                self.what,
                self.stderr()
            );
        }
        line.trim_end().to_owned()
    }

    /// Reads the next JSON object on standard output, and skips what else is there: gloo of PyTorch 2.9 prints its
    /// connections, in pieces, so that the object of one rank can follow the beginning of another's line.
    ///
    /// # Panics
    /// When standard output ends before a JSON object.
    pub fn read_json(&mut self) -> Value {
        loop {
            let line = self.read_line();
            if let Some(start) = line.find('{') {
                return serde_json::from_str(&line[start..])
                    .unwrap_or_else(|error| panic!("{}: {error}: {line}", self.what));
            }
        }
    }

    /// The last lines that the child has written to standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        lock(&self.stderr).join("\n")
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process (SIGSTOP). Its connections stay open.
    ///
    /// Returns when all of its threads have stopped.
    ///
    /// # Panics
    /// When the process has exited.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let waited = waitpid(Some(self.pid()), WaitOptions::UNTRACED);
        let stopped = matches!(waited, Ok(Some((_, status))) if status.stopped());
        assert!(stopped, "{} does not stop: {waited:?}", self.what);
    }

    /// Continues the process after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process (SIGKILL), as in a crash.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits until the process exits.
    ///
    /// # Panics
    /// When the process still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.try_wait() {
                self.read_rest();
                return status;
            }
            if started.elapsed() > limit {
                panic!(
                    "{} still runs after {limit:?}; its stderr:\n{}",
                    self.what,
                    self.stderr()
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the last lines that the process has written, or for as long as children keep its standard error.
    fn read_rest(&self) {
        const CHILDREN_LIMIT: Duration = Duration::from_secs(2);
        let started = Instant::now();
        while !self.stderr_reader.is_finished() && started.elapsed() < CHILDREN_LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The status of the process if it has exited.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().expect("a child can be waited for");
        if status.is_some() {
            lock(&RUNNING).remove(&self.child.id());
        }
        status
    }

    fn pid(&self) -> Pid {
        i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a child has a process id")
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// When the process has exited.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal)
            .unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.what));
    }
}

impl fmt::Debug for ChildProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildProcess")
            .field("what", &self.what)
            .field("id", &self.child.id())
            .finish_non_exhaustive()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Both do nothing if the process has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        lock(&RUNNING).remove(&self.child.id());
        // After a kill, the workers of a launcher can keep its standard error open without end. The reader then continues alone,
        // and a failed test reports its failure.
        self.read_rest();
    }
}

/// Kills all child processes, and writes the last lines of their standard error to `to`. Call it before an abort, which runs
/// no drops and discards the output of the test.
pub fn kill_all(mut to: impl Write) {
    for (&id, (what, stderr)) in lock(&RUNNING).iter() {
        let _: io::Result<()> =
            writeln!(to, "{what}, {id}, wrote last:\n{}", lock(stderr).join("\n"));
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn keep_lines(pipe: ChildStderr, kept: &Mutex<Vec<String>>) {
    for line in BufReader::new(pipe).lines() {
        let Ok(line) = line else { return };
        let mut kept = lock(kept);
        if kept.len() == STDERR_LINES_MAX {
            kept.remove(0);
        }
        kept.push(line);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_behind_a_piece_of_another_line() {
        let text =
            "[Gloo] Rank {\"joined\": 0}\n1 is connected to 1 peer ranks.\n{\"joined\": 1}\n";
        let mut child = ChildProcess::start("printf", Command::new("printf").arg("%s").arg(text));
        for rank in 0..2 {
            assert_eq!(child.read_json()["joined"], rank);
        }
    }

    #[test]
    fn a_child_ends_although_its_own_child_keeps_standard_error() {
        let script = "sleep 1000 & echo $!; wait";
        let mut child = ChildProcess::start("sh", Command::new("sh").args(["-c", script]));
        let sleep = child.read_line().parse().ok().and_then(Pid::from_raw);
        drop(child);
        // Signals it only if it still runs, and so still had standard error.
        kill_process(sleep.expect("its id"), Signal::KILL).expect("it still runs");
    }
}
