//! Child processes that never outlive their test.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

/// The processes running now, for [`kill_all`].
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Lines of a child's standard error that are kept for messages.
const STDERR_LINES_MAX: usize = 40;

/// A child process with pipes on all three standard streams, killed when dropped.
pub struct ChildProcess {
    child: Child,
    what: String,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Arc<Mutex<Vec<String>>>,
    stderr_reader: Option<JoinHandle<()>>,
}

impl ChildProcess {
    /// Starts `command`; `what` names it in messages.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(what: impl Into<String>, command: &mut Command) -> Self {
        let what = what.into();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {what} ({command:?}): {error}"));
        lock(&RUNNING).insert(child.id());
        let stderr = Arc::new(Mutex::new(Vec::new()));
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
            stderr_reader: Some(stderr_reader),
        }
    }

    /// What it is, as given to [`start`](Self::start).
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Takes its standard input. Dropping the pipe closes it.
    ///
    /// # Panics
    /// The second time.
    pub fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().expect("stdin is taken once")
    }

    /// Takes its standard output.
    ///
    /// # Panics
    /// The second time.
    pub fn take_stdout(&mut self) -> BufReader<ChildStdout> {
        self.stdout.take().expect("stdout is taken once")
    }

    /// The next line of its standard output, without the line end.
    ///
    /// Blocks until there is one: only for children that print it first thing.
    ///
    /// # Panics
    /// When it ends without printing one, or the output was taken.
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

    /// The next line of its standard output that is a JSON object. Others are passed over: gloo of PyTorch
    /// 2.9 reports its connections there.
    ///
    /// # Panics
    /// When it ends without one.
    pub fn read_json(&mut self) -> Value {
        loop {
            let line = self.read_line();
            if line.starts_with('{') {
                return serde_json::from_str(&line)
                    .unwrap_or_else(|error| panic!("{}: {error}: {line}", self.what));
            }
        }
    }

    /// What it wrote to standard error so far, the last lines of it.
    #[must_use]
    pub fn stderr(&self) -> String {
        lock(&self.stderr).join("\n")
    }

    /// Stops it as if it were stuck (SIGSTOP). It still counts as connected everywhere.
    ///
    /// Returns when all of its threads stand still: the signal alone does not wait for that.
    ///
    /// # Panics
    /// When it has ended.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let waited = waitpid(Some(self.pid()), WaitOptions::UNTRACED);
        let stopped = matches!(waited, Ok(Some((_, status))) if status.stopped());
        assert!(stopped, "{} does not stop: {waited:?}", self.what);
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it at once (SIGKILL): no clean-up of its own, as in a crash.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                lock(&RUNNING).remove(&self.child.id());
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

    fn pid(&self) -> Pid {
        i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a child has a process id")
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it has ended.
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
        // A process that has been waited for is left alone by both.
        let _ = self.child.kill();
        let _ = self.child.wait();
        lock(&RUNNING).remove(&self.child.id());
        if let Some(reader) = self.stderr_reader.take() {
            let _ = reader.join();
        }
    }
}

/// Kills every child that still runs, for a test process that is about to abort.
pub fn kill_all() {
    for &id in lock(&RUNNING).iter() {
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
