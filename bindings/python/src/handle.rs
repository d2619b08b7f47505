//! A store that belongs to one process, until it is closed.

use std::mem;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use c10d_store::{Store, StoreError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::call::{run, run_interruptible};
use crate::errors::{closed, store_error};

/// An open store. A forked child can neither use nor end what belongs to its parent: connections, locks, threads.
#[derive(Debug)]
pub(crate) struct Handle {
    process: u32,
    store: Mutex<Option<Arc<dyn Store>>>,
}

impl Handle {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            process: process::id(),
            store: Mutex::new(Some(store)),
        }
    }

    /// The store.
    ///
    /// # Errors
    /// In a forked child, and after [`close`](Self::close).
    pub(crate) fn store(&self, py: Python<'_>) -> PyResult<Arc<dyn Store>> {
        check_process(self.process, "store")?;
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.as_ref().map(Arc::clone).ok_or_else(|| closed(py))
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
        let result = run_interruptible(py, interrupt, move || call(&*waiting))?;
        result.map_err(|error| store_error(py, &error))
    }

    /// Ends the calls in progress in other threads, and later ones. The process' last handle of a server stops it.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process, "store")?;
        let store = self
            .store
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(store) = store {
            run(py, || {
                store.close();
                drop(store);
            });
        }
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.is_none()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(
                self.store
                    .get_mut()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take(),
            );
        }
    }
}

/// Refuses to use in a forked child what its parent has opened.
pub(crate) fn check_process(opened_by: u32, what: &str) -> PyResult<()> {
    let this = process::id();
    if opened_by == this {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "process {opened_by} opened this {what}, and its forked child {this} cannot use it: open another one after the \
         fork, or start the child with the method \"spawn\""
    )))
}

/// Whether a call that checked once may succeed with time: the key is missing, or the server is slow.
fn may_succeed_later(error: &StoreError) -> bool {
    error.is_timeout() || matches!(error, StoreError::NoReply { .. })
}
