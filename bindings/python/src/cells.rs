//! Values of Python objects that exist for a part of the life of the object: stores, groups, servers and threads until they
//! are closed, and what `__init__` sets.

use std::sync::{Mutex, OnceLock, PoisonError};

use c10d_socket::ProcessBound;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::{forked, raise};

/// A value until it is taken out. Its lock is held under Python's lock only, so that a forked child finds it free.
#[derive(Debug)]
pub(crate) struct Owned<T: Send> {
    what: &'static str,
    value: Mutex<Option<T>>,
}

impl<T: Send> Owned<T> {
    /// Errors call the value `what`.
    pub(crate) const fn new(what: &'static str, value: T) -> Self {
        Self {
            what,
            value: Mutex::new(Some(value)),
        }
    }

    /// A clone of the value.
    ///
    /// # Errors
    /// After [`take`](Self::take).
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<T>
    where
        T: Clone,
    {
        self.read(T::clone).ok_or_else(|| {
            let message = format!("the {} has been closed", self.what);
            raise(py, "DistStoreError", message)
        })
    }

    /// Takes the value out; `None` if that was done before.
    pub(crate) fn take(&self) -> Option<T> {
        self.with(Option::take)
    }

    /// Returns the result of `read` for the value; `None` after [`take`](Self::take).
    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.with(|value| value.as_ref().map(read))
    }

    fn with<R>(&self, work: impl FnOnce(&mut Option<T>) -> R) -> R {
        work(&mut self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Send> Drop for Owned<T> {
    /// Drops the value without Python's lock, because it waits for threads, which may wait for that lock.
    fn drop(&mut self) {
        let mut value = self.take();
        // Without an interpreter, the value is dropped at the end of this function.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}

impl<T: Send> Owned<ProcessBound<T>> {
    /// A clone of the value.
    ///
    /// # Errors
    /// After [`take`](Self::take), and in a forked child.
    pub(crate) fn get_here(&self, py: Python<'_>) -> PyResult<T>
    where
        T: Clone,
    {
        self.get(py)?.get().cloned().map_err(forked)
    }

    /// Takes the value out; `None` if that was done before.
    ///
    /// # Errors
    /// In a forked child.
    pub(crate) fn take_here(&self) -> PyResult<Option<T>> {
        if let Some(Err(error)) = self.read(|value| value.get().map(drop)) {
            return Err(forked(error));
        }
        Ok(self.take().and_then(ProcessBound::into_inner))
    }
}

/// A value that `__init__` sets once.
#[derive(Debug)]
pub(crate) struct SetOnce<T>(OnceLock<T>);

impl<T> SetOnce<T> {
    pub(crate) const fn unset() -> Self {
        Self(OnceLock::new())
    }

    pub(crate) fn new(value: T) -> Self {
        Self(OnceLock::from(value))
    }

    /// # Errors
    /// An exception if the value is set, because `__init__` was called twice.
    pub(crate) fn set(&self, value: T) -> PyResult<()> {
        self.0
            .set(value)
            .map_err(|_| PyRuntimeError::new_err("this store is open: __init__ was called twice"))
    }

    /// # Errors
    /// An exception if the value is not set.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.0.get().ok_or_else(|| {
            let text = "this store is not open: its subclass has not called super().__init__()";
            PyRuntimeError::new_err(text)
        })
    }
}
