//! Connections, threads and servers that belong to one process, until they are closed.

use std::sync::{Mutex, PoisonError};

use c10d_socket::ProcessBound;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::raise;

/// A value that only the process that made it may use or end, until it is taken out.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    what: &'static str,
    value: ProcessBound<Mutex<Option<T>>>,
}

impl<T> Owned<T> {
    /// Errors call the value `what`.
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self {
            what,
            value: ProcessBound::new(what, Mutex::new(Some(value))),
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
        self.with(|value| value.clone())?.ok_or_else(|| {
            let message = format!("the {} has been closed", self.what);
            raise(py, "DistStoreError", message)
        })
    }

    /// Takes the value out; `None` if that was done before.
    ///
    /// # Errors
    /// In a forked child.
    pub(crate) fn take(&self) -> PyResult<Option<T>> {
        self.with(Option::take)
    }

    /// What `read` makes of the value; `None` after [`take`](Self::take), and in a forked child.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.with(|value| value.as_ref().map(read)).ok()?
    }

    fn with<R>(&self, work: impl FnOnce(&mut Option<T>) -> R) -> PyResult<R> {
        let value = self.value.get().map_err(|forked| {
            PyRuntimeError::new_err(format!(
                "{forked}, or start the child with the method \"spawn\""
            ))
        })?;
        Ok(work(
            &mut value.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}
