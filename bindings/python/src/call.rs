//! Calls that block: without Python's lock, and ended by Ctrl-C.

use c10d_socket::Cancel;
use pyo3::prelude::*;

use crate::main_thread::is_main_thread;
use crate::signals;

/// Ends the calls of [`run`] by Ctrl-C: what they wait on must have it.
pub(crate) fn cancel() -> Cancel {
    signals::cancel().clone()
}

/// Runs a call that may block, without Python's lock.
///
/// # Errors
/// What a signal handler raised. The result of the call is lost then.
pub(crate) fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(call));
    }
    let handling = signals::Handling::begin();
    let result = py.detach(call);
    handling.end(py)?;
    Ok(result)
}
