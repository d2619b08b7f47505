//! The calls of an open store.

use std::sync::Arc;

use c10d_store::{Store, StoreError};
use pyo3::prelude::*;

use crate::call::run;
use crate::errors::store_error;
use crate::owned::Owned;

/// An open store.
#[derive(Debug)]
pub(crate) struct Handle(Owned<Arc<dyn Store>>);

impl Handle {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self(Owned::new("store", store))
    }

    /// The store.
    ///
    /// # Errors
    /// In a forked child, and after [`close`](Self::close).
    pub(crate) fn store(&self, py: Python<'_>) -> PyResult<Arc<dyn Store>> {
        self.0.get(py)
    }

    /// Makes a call, which Ctrl-C ends.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let store = self.store(py)?;
        run(py, || call(&*store))?.map_err(|error| store_error(py, &error))
    }

    /// Ends the calls in progress in other threads, and later ones. The process' last handle of a server stops it.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(store) = self.0.take()? {
            py.detach(|| {
                store.close();
                drop(store);
            });
        }
        Ok(())
    }

    /// `, closed` after [`close`](Self::close), for a text about the store.
    pub(crate) fn state(&self) -> &'static str {
        self.0.read(|_| "").unwrap_or(", closed")
    }
}
