//! Calls that block: without Python's lock, and ended by Ctrl-C.
//!
//! Python runs signal handlers on its main thread only, between two steps of the interpreter. A call that blocks there
//! runs them itself: after each signal, and every 50 ms for a signal that arrived just before the wait or on another
//! thread. If a handler raises, the call ends.

use std::sync::{Arc, Mutex, PoisonError};

use c10d_socket::interruptible;
use pyo3::prelude::*;

use crate::main_thread::is_main_thread;

/// Runs a call that may block, without Python's lock.
///
/// # Errors
/// What a signal handler raised. The result of the call is lost then.
pub(crate) fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(call));
    }
    let raised = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&raised);
    let check = move || {
        let Err(error) = Python::attach(|py| py.check_signals()) else {
            return false;
        };
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        true
    };
    let result = py.detach(|| interruptible(check, call));
    let raised = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
    raised.map_or(Ok(result), Err)
}
