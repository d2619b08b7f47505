//! Calls that block: without Python's lock, and ended by Ctrl-C.
//!
//! Python runs signal handlers on its main thread only, between two steps of the interpreter. So the main thread
//! must not block in a store. A call that has to wait there runs on a helper thread; the main thread waits for a byte
//! from it, and a signal ends that wait at once (EINTR). If the handler raises, the helper's call is interrupted.
//! Other threads call the store themselves.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::main_thread::is_main_thread;

/// The main thread looks for signals that did not end its wait at this interval: one that arrived just before
/// the wait, or on another thread.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// How long an interrupted call of a store may take to end. After that its thread is left behind, and ends with the
/// call's own timeout.
pub(crate) const INTERRUPT_GRACE: Duration = Duration::from_millis(50);

/// Runs a call that the store answers at once, without Python's lock.
pub(crate) fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    py.detach(call)
}

/// Runs a call that may block, without Python's lock. If a signal handler raises, `interrupt` is told which thread
/// runs the call, and the exception is returned when the call has ended, or after `grace`.
pub(crate) fn run_interruptible<T: Send + 'static>(
    py: Python<'_>,
    grace: Duration,
    interrupt: impl Fn(ThreadId),
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(call));
    }
    let helper = match HELPER.take() {
        Some(helper) if helper.process == process::id() => helper,
        _ => Helper::start()?,
    };
    let (sender, result) = mpsc::channel();
    let job: Job = Box::new(move || {
        // The caller may have left.
        let _ = sender.send(call());
    });
    if helper.jobs.send(job).is_err() {
        return Err(lost());
    }
    loop {
        match py.detach(|| helper.wait()) {
            Ok(()) => break,
            Err(error) if is_early(&error) => {}
            Err(_) => return Err(lost()),
        }
        if let Err(raised) = py.check_signals() {
            interrupt(helper.thread);
            py.detach(|| helper.wait_for_end(grace));
            // The interrupt may be left for this thread's next wait: it gets no further call.
            return Err(raised);
        }
    }
    HELPER.set(Some(helper));
    result.recv().map_err(|_| lost())
}

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The helper of the main thread, between two calls. A signal handler that calls a store during a call starts
    /// another one.
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
}

/// A thread that runs one call after another. It ends when it is dropped and its call has ended.
struct Helper {
    /// A forked child has no such thread.
    process: u32,
    jobs: Sender<Job>,
    /// Delivers a byte when a call has ended.
    ended: UnixStream,
    thread: ThreadId,
}

impl Helper {
    fn start() -> io::Result<Self> {
        let (ended, end) = UnixStream::pair()?;
        ended.set_read_timeout(Some(SIGNAL_INTERVAL))?;
        let (jobs, queue) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("c10d-call".to_owned())
            .spawn(move || serve(&queue, end))?;
        Ok(Self {
            process: process::id(),
            jobs,
            ended,
            thread: thread.thread().id(),
        })
    }

    /// Waits until the call has ended, for at most [`SIGNAL_INTERVAL`], or until a signal arrives.
    fn wait(&self) -> io::Result<()> {
        match (&self.ended).read(&mut [0])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Waits until the interrupted call has ended, through further signals.
    fn wait_for_end(&self, grace: Duration) {
        let started = Instant::now();
        while started.elapsed() < grace {
            match self.wait() {
                Err(error) if is_early(&error) => {}
                _ => return,
            }
        }
    }
}

fn serve(queue: &Receiver<Job>, mut end: UnixStream) {
    for job in queue {
        job();
        if end.write_all(&[1]).is_err() {
            return;
        }
    }
}

/// Whether a wait ended before the call did.
fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn lost() -> PyErr {
    PyRuntimeError::new_err("the thread of the call has panicked: see standard error")
}
