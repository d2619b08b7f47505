//! Calls that block: without Python's lock, and ended by Ctrl-C on the thread that runs Python's signal handlers.

use std::cell::Cell;

use c10d_socket::{Cancel, Process};
use pyo3::prelude::*;

use crate::signals;

/// Returns the handle that cancels calls of [`run`] on Ctrl-C. Every wait of these calls must use it.
pub(crate) fn cancel() -> Cancel {
    signals::cancel().clone()
}

/// Runs a call that may block, without Python's lock.
///
/// # Errors
/// The exception that a signal handler raised. The result of the call is then lost, even if it succeeded.
pub(crate) fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(call));
    }
    let handling = signals::Handling::begin();
    let result = py.detach(call);
    handling.end(py)?;
    Ok(result)
}

thread_local! {
    /// The answer and the process that it is for: in a forked child, the thread that forked is the main thread.
    static KNOWN: Cell<Option<(Process, bool)>> = const { Cell::new(None) };
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
