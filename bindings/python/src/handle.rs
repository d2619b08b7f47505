//! The calls of a store: which of them may wait, and how an interrupt ends them.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use c10d_store::{Store, StoreError};
use pyo3::prelude::*;

use crate::call::{INTERRUPT_GRACE, run, run_interruptible};
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

    /// Makes a call that the store answers at once.
    pub(crate) fn ask<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let store = self.store(py)?;
        run(py, || call(&*store)).map_err(|error| store_error(py, &error))
    }

    /// Makes a call that may wait for another process. It must be one that can be repeated after a timeout: it is first
    /// made with a timeout of zero, which needs no other thread.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        call: impl Fn(&dyn Store, Option<Duration>) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> PyResult<T> {
        let store = self.store(py)?;
        match run(py, || call(&*store, Some(Duration::ZERO))) {
            Err(error) if may_succeed_later(&error) && timeout != Some(Duration::ZERO) => {}
            result => return result.map_err(|error| store_error(py, &error)),
        }
        self.wait_once(py, move |store| call(store, timeout))
    }

    /// Makes a call that may wait for another process and must not be repeated.
    pub(crate) fn wait_once<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> PyResult<T> {
        let store = self.store(py)?;
        let waiting = Arc::clone(&store);
        let interrupt = |thread: ThreadId| {
            store.interrupt(thread);
        };
        let result = run_interruptible(py, INTERRUPT_GRACE, interrupt, move || call(&*waiting))?;
        result.map_err(|error| store_error(py, &error))
    }

    /// Ends the calls in progress in other threads, and later ones. The process' last handle of a server stops it.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(store) = self.0.take()? {
            run(py, || {
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

/// Whether a call that checked once may succeed with time: the key is missing, or the server is slow.
fn may_succeed_later(error: &StoreError) -> bool {
    error.is_timeout() || matches!(error, StoreError::NoReply { .. })
}
