//! Reads the stacks of one process again and again, with the crate py-spy.

use std::fmt;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use c10d_socket::{ProcessStat, printable};
use py_spy::config::{LineNo, LockingStrategy};
use py_spy::{Config, PythonSpy, StackTrace};

use crate::error::StackError;
use crate::interpreter::Interpreter;
use crate::threads::{PythonFrame, PythonStacks, PythonThread};

/// How often a sample is tried. The process keeps running, so its stacks can change while they are read.
const ATTEMPTS: usize = 3;

/// A sample that took longer is not tried again: the memory of the process is damaged, or this host is busy.
const ATTEMPT_TIME_MAX: Duration = Duration::from_millis(100);

/// The most characters of a message of py-spy.
const REASON_CHARS_MAX: usize = 160;

/// Reads the Python stacks of one process, without stopping it and without any values of variables.
///
/// The process must belong to the same user and be a descendant of this process. Otherwise this process needs the
/// capability SYS_PTRACE. All methods read files of the interpreter, so they block while its file system does not
/// answer.
///
/// ```no_run
/// use c10d_stacks::StackReader;
///
/// let pid = 4711; // a child of this process
/// let mut reader = StackReader::attach(pid)?;
/// for thread in reader.sample()?.threads {
///     println!("{} frames", thread.frames.len());
/// }
/// # Ok::<(), c10d_stacks::StackError>(())
/// ```
pub struct StackReader {
    pid: u32,
    /// The start of the process, because another process may get its id later.
    start_ticks: u64,
    spy: PythonSpy,
}

impl fmt::Debug for StackReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackReader")
            .field("pid", &self.pid)
            .field("python", &self.spy.version.to_string())
            .finish_non_exhaustive()
    }
}

impl StackReader {
    /// Finds the interpreter in the memory of a process, which takes some milliseconds.
    ///
    /// # Errors
    /// [`StackError`] if the process cannot be read. A process that has just started may not have an interpreter yet.
    pub fn attach(pid: u32) -> Result<Self, StackError> {
        let start_ticks = start_of(pid)?;
        let interpreter = Interpreter::of(pid)?;
        if let Some(name) = interpreter.free_threaded() {
            return Err(StackError::Unsupported(shown(&format!(
                "{name} without GIL"
            ))));
        }
        check_access(pid)?;
        let fails = |error: io::Error| StackError::FileSystem(shown(&error.to_string()));
        interpreter.check_files().map_err(fails)?;
        let raw_pid = i32::try_from(pid).map_err(|_| StackError::Ended)?;
        let spy = guarded(|| PythonSpy::new(raw_pid, &config()));
        let spy = spy.map_err(|reason| explained(pid, start_ticks, reason))?;
        if (spy.version.major, spy.version.minor) < (3, 9) {
            return Err(StackError::Unsupported(shown(&spy.version.to_string())));
        }
        Ok(Self {
            pid,
            start_ticks,
            spy,
        })
    }

    /// Returns the id of the process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the process still runs, and its id does not belong to another process.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_of(self.pid) == Ok(self.start_ticks)
    }

    /// Returns the stacks of all threads at this moment, which takes about a millisecond. The process keeps running, so
    /// a thread that computes can show frames of two moments.
    ///
    /// # Errors
    /// [`StackError`] if the stacks cannot be read. The error is also [`Unreadable`](StackError::Unreadable) after the
    /// process has started another program; attach again in this case.
    pub fn sample(&mut self) -> Result<PythonStacks, StackError> {
        let mut outcome = Err(String::new());
        for _ in 0..ATTEMPTS {
            if !self.is_alive() {
                return Err(StackError::Ended);
            }
            let started = Instant::now();
            outcome = guarded(|| self.spy.get_stack_traces());
            if outcome.is_ok() || started.elapsed() > ATTEMPT_TIME_MAX {
                break;
            }
        }
        match outcome {
            Ok(traces) if self.is_alive() => Ok(PythonStacks::new(
                self.pid,
                traces.into_iter().map(thread).collect(),
            )),
            Ok(_) => Err(StackError::Ended),
            Err(reason) => Err(explained(self.pid, self.start_ticks, reason)),
        }
    }
}

/// The settings of py-spy: it does not stop the process, and does not search for files on its file systems.
fn config() -> Config {
    Config {
        blocking: LockingStrategy::NonBlocking,
        native: false,
        dump_locals: 0,
        gil_only: false,
        collect_thread_names: true,
        full_filenames: true,
        lineno: LineNo::LastInstruction,
        ..Config::default()
    }
}

fn thread(trace: StackTrace) -> (PythonThread, bool) {
    let frames = trace.frames.into_iter();
    let frames = frames.map(|it| PythonFrame::new(it.filename, it.line, it.name));
    PythonThread::new(trace.thread_name, trace.os_thread_id, frames)
}

/// Returns the result of py-spy. It may also panic, because the memory of a process can have any bytes. Nothing that
/// such a panic could have left half changed is used afterwards.
fn guarded<T, E: fmt::Display>(run: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| format!("{error:#}")),
        Err(_) => Err("py-spy panics".to_owned()),
    }
}

fn explained(pid: u32, start_ticks: u64, reason: String) -> StackError {
    const VERSION: &str = "Unsupported version of Python: ";
    if start_of(pid) != Ok(start_ticks) {
        return StackError::Ended;
    }
    match reason.split_once(VERSION) {
        Some((_, version)) => StackError::Unsupported(shown(version)),
        None => StackError::Unreadable(shown(&reason)),
    }
}

/// Returns when the process started.
fn start_of(pid: u32) -> Result<u64, StackError> {
    match ProcessStat::of(pid) {
        Some(stat) if !stat.has_ended() => Ok(stat.start_ticks),
        Some(_) => Err(StackError::Ended),
        None if ProcessStat::of(std::process::id()).is_none() => Err(StackError::NoProc),
        None => Err(StackError::of_folder(pid)),
    }
}

/// Returns whether the system lets this process read the memory of the given process.
fn check_access(pid: u32) -> Result<(), StackError> {
    match File::open(format!("/proc/{pid}/mem")) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StackError::Ended),
        Err(_) => Err(StackError::of_memory(pid)),
    }
}

fn shown(text: &str) -> String {
    printable(text, REASON_CHARS_MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let panicking = guarded(|| -> Result<(), String> { std::panic::panic_any(7) });
        assert_eq!(panicking, Err("py-spy panics".to_owned()));
        assert_eq!(guarded(|| Ok::<_, String>(7)), Ok(7));
    }

    #[test]
    fn a_reason_becomes_an_error() {
        let own = std::process::id();
        let start = start_of(own).unwrap();
        let of = |reason: &str| explained(own, start, reason.to_owned());
        let newer = of("Failed: Unsupported version of Python: 3.16.0");
        assert_eq!(newer, StackError::Unsupported("3.16.0".to_owned()));
        let other = of("Failed to copy\u{1b}[2J");
        assert_eq!(
            other,
            StackError::Unreadable("Failed to copy\\u{1b}[2J".to_owned())
        );
        assert_eq!(explained(own, start + 1, String::new()), StackError::Ended);
        assert_eq!(check_access(own), Ok(()));
        assert_eq!(start_of(0), Err(StackError::Ended));
    }
}
