//! Connections, threads and servers that belong to one process, until they are closed.

use std::mem;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::raise;

/// A value that only the process that made it may use or end. In a forked child its locks may be held and its threads
/// do not exist, so the child's copy is forgotten.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    process: u32,
    what: &'static str,
    value: Mutex<Option<T>>,
}

impl<T> Owned<T> {
    /// Errors call the value `what`.
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self {
            process: process::id(),
            what,
            value: Mutex::new(Some(value)),
        }
    }

    /// A clone of the value.
    ///
    /// # Errors
    /// In a forked child, and after [`take`](Self::take).
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<T>
    where
        T: Clone,
    {
        self.check_process()?;
        self.lock().as_ref().cloned().ok_or_else(|| {
            let message = format!("the {} has been closed", self.what);
            raise(py, "DistStoreError", message)
        })
    }

    /// Takes the value out; `None` if that was done before.
    ///
    /// # Errors
    /// In a forked child.
    pub(crate) fn take(&self) -> PyResult<Option<T>> {
        self.check_process()?;
        Ok(self.lock().take())
    }

    /// What `read` makes of the value; `None` after [`take`](Self::take), and in a forked child.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.check_process().ok()?;
        self.lock().as_ref().map(read)
    }

    fn check_process(&self) -> PyResult<()> {
        let this = process::id();
        if self.process == this {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "process {} opened this {}, and its forked child {this} cannot use it: open another one after the fork, or \
             start the child with the method \"spawn\"",
            self.process, self.what
        )))
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            let value = self.value.get_mut().unwrap_or_else(PoisonError::into_inner);
            mem::forget(value.take());
        }
    }
}
