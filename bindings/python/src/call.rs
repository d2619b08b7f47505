//! Calls that block: without Python's lock, and with Python's signal handlers while the main thread waits, so that Ctrl-C ends
//! them.
//!
//! Python runs handlers on its main thread only, between two steps of the interpreter. For each signal, on whichever thread it
//! arrives, its handler in C writes a byte to the process' wakeup descriptor (`signal.set_wakeup_fd`). A call on the main
//! thread that waits for longer than a moment takes that descriptor over: the thread `c10d-signals` reads the bytes and
//! wakes the call, which runs the handlers and ends if one raises. Nothing polls, and a signal just before the wait is in
//! the descriptor. At the end of the call the descriptor is the user's again, which gets the bytes too, as asyncio needs.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

use c10d_socket::{Cancel, Process};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// The value of `signal.set_wakeup_fd` for no descriptor.
const NONE: i32 = -1;

/// Woken by every signal.
static CANCEL: LazyLock<Cancel> = LazyLock::new(|| Cancel::with_check(must_end));

/// How often `c10d-signals` has received something.
static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// The user's descriptor, which gets the received bytes.
static USERS: AtomicI32 = AtomicI32::new(NONE);

/// The process and the end that its handlers write to. A forked child has no thread that reads it.
static WATCHED: Mutex<Option<(Process, UnixStream)>> = Mutex::new(None);

thread_local! {
    /// The call in progress on the main thread.
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
    /// The number of [`RECEIVED`] when the handlers ran last.
    static HANDLED: Cell<u64> = const { Cell::new(0) };
    /// Whether this is the main thread, and the process in which that holds: in a forked child, the thread that forked is
    /// the main thread.
    static KNOWN: Cell<Option<(Process, bool)>> = const { Cell::new(None) };
}

#[derive(Debug, Default)]
struct Call {
    /// The descriptor that it has taken over.
    taken: Option<i32>,
    raised: Option<PyErr>,
}

/// Returns the handle that cancels calls of [`run`] on Ctrl-C: a handler that raises cancels the call on the main thread, and
/// no call on another thread. Every wait of these calls must use it.
pub(crate) fn cancel() -> Cancel {
    CANCEL.clone()
}

/// Runs a call that may block, without Python's lock.
///
/// # Errors
/// The exception that a signal handler raised. The result of the call is then lost, even if it succeeded.
pub(crate) fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(call));
    }
    let handling = Handling::begin();
    let result = py.detach(call);
    match handling.end(py) {
        Ok(()) => Ok(result),
        Err(raised) => {
            // It may wait for threads.
            py.detach(|| drop(result));
            Err(raised)
        }
    }
}

/// Whether Python runs its signal handlers on this thread.
pub(crate) fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    if let Some((process, is_main)) = KNOWN.get()
        && process.is_this()
    {
        return Ok(is_main);
    }
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    let is_main = main.eq(threading.call_method0("get_ident")?)?;
    KNOWN.set(Some((Process::this(), is_main)));
    Ok(is_main)
}

/// A call on the main thread, whose waits run the signal handlers. A handler may make another call.
#[derive(Debug)]
#[must_use]
struct Handling {
    outer: Option<Call>,
}

impl Handling {
    fn begin() -> Self {
        Self {
            outer: CALL.replace(Some(Call::default())),
        }
    }

    /// # Errors
    /// What a handler raised.
    fn end(mut self, py: Python<'_>) -> PyResult<()> {
        let Some(call) = CALL.replace(self.outer.take()) else {
            return Ok(());
        };
        if let Some(users) = call.taken {
            set_wakeup_fd(py, users)?;
        }
        call.raised.map_or(Ok(()), Err)
    }
}

/// Whether the call of this thread ends: a handler has raised. Runs the handlers if a signal has arrived.
fn must_end() -> bool {
    let begun = CALL.with_borrow(|call| {
        let call = call.as_ref()?;
        Some((call.raised.is_some(), call.taken.is_some()))
    });
    let received = RECEIVED.load(Ordering::SeqCst);
    match begun {
        None => return false,
        Some((true, _)) => return true,
        Some((false, true)) if HANDLED.replace(received) == received => return false,
        Some(_) => HANDLED.set(received),
    }
    let Err(error) = Python::attach(run_handlers) else {
        return false;
    };
    CALL.with_borrow_mut(|call| {
        if let Some(call) = call {
            call.raised = Some(error);
        }
    });
    true
}

fn run_handlers(py: Python<'_>) -> PyResult<()> {
    let is_taken = CALL.with_borrow(|call| call.as_ref().is_some_and(|it| it.taken.is_some()));
    if !is_taken {
        let own = watched()?;
        let users = set_wakeup_fd(py, own)?;
        if users != own {
            USERS.store(users, Ordering::SeqCst);
        }
        CALL.with_borrow_mut(|call| {
            if let Some(call) = call {
                call.taken = Some(users);
            }
        });
    }
    // This also runs the handlers of earlier signals.
    py.check_signals()
}

/// Returns the descriptor before.
fn set_wakeup_fd(py: Python<'_>, fd: i32) -> PyResult<i32> {
    let options = PyDict::new(py);
    options.set_item("warn_on_full_buffer", false)?;
    let signal = py.import("signal")?;
    signal
        .call_method("set_wakeup_fd", (fd,), Some(&options))?
        .extract()
}

/// The descriptor of this process that `c10d-signals` reads.
fn watched() -> io::Result<i32> {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, end)) = &*watched
        && owner.is_this()
    {
        return Ok(end.as_raw_fd());
    }
    let (written, read) = UnixStream::pair()?;
    written.set_nonblocking(true)?;
    thread::Builder::new()
        .name("c10d-signals".to_owned())
        .spawn(move || watch(read))?;
    let (_, written) = watched.insert((Process::this(), written));
    Ok(written.as_raw_fd())
}

fn watch(mut signals: UnixStream) {
    let mut numbers = [0; 64];
    loop {
        let count = match signals.read(&mut numbers) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        RECEIVED.fetch_add(1, Ordering::SeqCst);
        CANCEL.wake();
        let users = USERS.load(Ordering::SeqCst);
        if users != NONE {
            // Most likely it is full, which is as good as one more byte.
            let _ = Python::attach(|py| {
                let bytes = PyBytes::new(py, &numbers[..count]);
                py.import("os")?
                    .call_method1("write", (users, bytes))
                    .map(drop)
            });
        }
    }
}
