//! What `__init__` sets, which a subclass in Python may call late, twice or never.

use std::sync::OnceLock;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

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
    /// If it is set: `__init__` was called twice.
    pub(crate) fn set(&self, value: T) -> PyResult<()> {
        self.0
            .set(value)
            .map_err(|_| PyRuntimeError::new_err("this store is open: __init__ was called twice"))
    }

    /// # Errors
    /// If it is not set.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.0.get().ok_or_else(|| {
            let text = "this store is not open: its subclass has not called super().__init__()";
            PyRuntimeError::new_err(text)
        })
    }
}
