//! The calls of an open store.

use std::sync::Arc;

use c10d_store::{Store, StoreError};
use pyo3::prelude::*;

use crate::call::run;
use crate::cells::Owned;
use crate::cells::SetOnce;
use crate::errors::store_error;

/// A store, once it is open.
#[derive(Debug)]
pub(crate) struct Handle(SetOnce<Owned<Arc<dyn Store>>>);

impl Handle {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self(SetOnce::new(Owned::new("store", store)))
    }

    pub(crate) const fn unopened() -> Self {
        Self(SetOnce::unset())
    }

    /// # Errors
    /// An exception if the handle is open.
    pub(crate) fn open(&self, store: Arc<dyn Store>) -> PyResult<()> {
        self.0.set(Owned::new("store", store))
    }

    /// Returns the wrapped store for one call.
    ///
    /// # Errors
    /// In a forked child, before [`open`](Self::open), and after [`close`](Self::close).
    pub(crate) fn store(&self, py: Python<'_>) -> PyResult<Arc<dyn Store>> {
        let store = self.0.get()?.get(py)?;
        let process = store.check_process();
        process.map_err(|error| store_error(py, &error))?;
        Ok(store)
    }

    /// Makes a call, which Ctrl-C ends.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let store = self.store(py)?;
        run(py, move || call(&*store))?.map_err(|error| store_error(py, &error))
    }

    /// Makes the calls in progress in other threads fail, and later calls. The process' last handle of a server
    /// stops the server.
    ///
    /// # Errors
    /// An exception in a forked child, whose parent's handle stays open.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let owned = self.0.get()?;
        if let Some(Err(error)) = owned.read(|store| store.check_process()) {
            return Err(store_error(py, &error));
        }
        if let Some(store) = owned.take() {
            py.detach(|| {
                store.close();
                drop(store);
            });
        }
        Ok(())
    }

    /// `, closed` unless it is open, for a text about the store.
    pub(crate) fn state(&self) -> &'static str {
        let open = self.0.get().ok().and_then(|store| store.read(|_| ""));
        open.unwrap_or(", closed")
    }
}
