//! `Store`: the operations that all stores have.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use c10d_store::StoreExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::arguments::{Key, Keys, Timeout, Value, Values};
use crate::errors::raise;
use crate::handle::Handle;

/// A key-value store that the workers of a job share. The base of TCPStore, FileStore, HashStore and PrefixStore.
#[pyclass(subclass, frozen, weakref, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) handle: Handle,
    /// Objects that live until the store is closed: see c10d_rs.torch.Store.
    kept: Mutex<Vec<Py<PyAny>>>,
}

impl Store {
    pub(crate) fn new(store: Arc<dyn c10d_store::Store>) -> Self {
        Self {
            handle: Handle::new(store),
            kept: Mutex::new(Vec::new()),
        }
    }

    /// A store that a constructor opens later.
    pub(crate) const fn unopened() -> Self {
        Self {
            handle: Handle::unopened(),
            kept: Mutex::new(Vec::new()),
        }
    }

    /// Closes the store, and then drops what it kept.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.close(py)?;
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        drop(kept);
        Ok(())
    }

    /// The timeout of the call; without one, the store's timeout.
    fn limit(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Option<Duration>> {
        match timeout {
            Some(Timeout(timeout)) => Ok(Some(timeout)),
            None => Ok(self.handle.store(py)?.timeout()),
        }
    }
}

#[pymethods]
impl Store {
    /// Creates the key or replaces its value, and wakes all calls that wait for it.
    fn set(&self, py: Python<'_>, key: Key, value: Value) -> PyResult<()> {
        self.handle.call(py, |store| store.set(&key.0, &value.0))
    }

    /// Returns the value. Waits until the key exists.
    fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Bound<'py, PyBytes>> {
        let timeout = self.limit(py, None)?;
        let value = self
            .handle
            .call(py, |store| store.get_timeout(&key.0, timeout))?;
        Ok(PyBytes::new(py, &value))
    }

    /// Returns the value, or None if the key is missing.
    fn try_get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.handle.call(py, |store| store.try_get(&key.0))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// Adds to the number at the key, and returns the sum. A missing key counts as 0.
    #[pyo3(signature = (key, value))]
    fn add(&self, py: Python<'_>, key: Key, value: i64) -> PyResult<i64> {
        self.handle.call(py, |store| store.add(&key.0, value))
    }

    /// Returns whether all keys exist.
    fn check(&self, py: Python<'_>, keys: Keys) -> PyResult<bool> {
        self.handle.call(py, |store| store.check(&keys.as_strs()))
    }

    /// Writes the desired value if the present one is the expected one, or if the key is missing and the expected value
    /// is empty. Returns the value afterwards.
    fn compare_set<'py>(
        &self,
        py: Python<'py>,
        key: Key,
        expected_value: Value,
        desired_value: Value,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (expected, desired) = (expected_value.0, desired_value.0);
        let result = self
            .handle
            .call(py, |store| store.compare_set(&key.0, &expected, &desired))?;
        Ok(PyBytes::new(py, result.value()))
    }

    /// Removes the key, and returns whether it existed.
    fn delete_key(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.handle.call(py, |store| store.delete_key(&key.0))
    }

    /// Returns the number of keys in the whole store.
    fn num_keys(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.call(py, |store| store.num_keys())
    }

    /// Waits until all keys exist.
    #[pyo3(signature = (keys, timeout=None))]
    fn wait(&self, py: Python<'_>, keys: Keys, timeout: Option<Timeout>) -> PyResult<()> {
        let timeout = self.limit(py, timeout)?;
        self.handle
            .call(py, |store| store.wait_timeout(&keys.as_strs(), timeout))
    }

    /// Appends to the value of the key.
    fn append(&self, py: Python<'_>, key: Key, value: Value) -> PyResult<()> {
        self.handle.call(py, |store| store.append(&key.0, &value.0))
    }

    /// Returns the values of all keys. Waits until all exist.
    fn multi_get<'py>(&self, py: Python<'py>, keys: Keys) -> PyResult<Bound<'py, PyList>> {
        let timeout = self.limit(py, None)?;
        let values = self.handle.call(py, |store| {
            store.multi_get_timeout(&keys.as_strs(), timeout)
        })?;
        PyList::new(py, values.iter().map(|value| PyBytes::new(py, value)))
    }

    /// Sets all keys, from left to right.
    fn multi_set(&self, py: Python<'_>, keys: Keys, values: Values) -> PyResult<()> {
        let values = values.0;
        if keys.0.len() != values.len() {
            let (keys, values) = (keys.0.len(), values.len());
            let message = format!("multi_set needs a value for each key, not {values} for {keys}");
            return Err(raise(py, "StoreValueError", message));
        }
        let keys = keys.as_strs();
        let values = values.iter().map(|value| value.0.as_slice());
        let pairs: Vec<(&str, &[u8])> = keys.into_iter().zip(values).collect();
        self.handle.call(py, |store| store.multi_set(&pairs))
    }

    /// Appends the value to the queue.
    fn queue_push(&self, py: Python<'_>, key: Key, value: Value) -> PyResult<()> {
        self.handle
            .call(py, |store| store.queue_push(&key.0, &value.0))
    }

    /// Removes and returns the first value of the queue. Waits for one, or raises QueueEmptyError if block is False.
    #[pyo3(signature = (key, block=true))]
    fn queue_pop<'py>(
        &self,
        py: Python<'py>,
        key: Key,
        block: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if block {
            let value = self.handle.call(py, |store| store.queue_pop(&key.0))?;
            return Ok(PyBytes::new(py, &value));
        }
        let value = self.handle.call(py, |store| store.try_queue_pop(&key.0))?;
        let Some(value) = value else {
            let message = format!("queue_pop {:?}: the queue is empty", key.0);
            return Err(raise(py, "QueueEmptyError", message));
        };
        Ok(PyBytes::new(py, &value))
    }

    /// Returns the number of values in the queue.
    fn queue_len(&self, py: Python<'_>, key: Key) -> PyResult<u64> {
        self.handle.call(py, |store| store.queue_len(&key.0))
    }

    /// Returns all keys that have a value, in no particular order.
    fn list_keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.handle.call(py, |store| store.list_keys())
    }

    /// Waits until world_size workers have arrived at the barrier. A key works once.
    #[pyo3(signature = (key, world_size, timeout=None))]
    fn barrier(
        &self,
        py: Python<'_>,
        key: Key,
        world_size: usize,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let timeout = self.limit(py, timeout)?;
        self.handle.call(py, |store| {
            store.barrier_timeout(&key.0, world_size, timeout)
        })
    }

    /// Writes the value and owns the key, or returns the present value if this store does not own it. The server
    /// deletes the key when this store is closed or its process exits. If there is a will, a key and a value, the
    /// server then writes it.
    #[pyo3(signature = (key, value, will=None))]
    fn set_ephemeral<'py>(
        &self,
        py: Python<'py>,
        key: Key,
        value: Value,
        will: Option<(Key, Value)>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let will = will.as_ref();
        let will = will.map(|(key, value)| (key.0.as_str(), value.0.as_slice()));
        let present = self
            .handle
            .call(py, |store| store.set_ephemeral(&key.0, &value.0, will))?;
        Ok(present.map(|value| PyBytes::new(py, &value)))
    }

    /// Says that this process lives. Its ephemeral keys also end when it is silent for longer than silence_max. Returns
    /// False if they have ended since the last call.
    #[pyo3(signature = (silence_max=None))]
    fn keep_alive(&self, py: Python<'_>, silence_max: Option<Timeout>) -> PyResult<bool> {
        let silence_max = silence_max.map(|it| it.0);
        self.handle.call(py, |store| store.keep_alive(silence_max))
    }

    /// Ends all calls of all clients that wait for a key, a barrier or a queue with this prefix. Returns their number.
    fn end_waits(&self, py: Python<'_>, prefix: Key) -> PyResult<u64> {
        self.handle.call(py, |store| store.end_waits(&prefix.0))
    }

    /// Deletes all keys and queues with this prefix, and returns their number; or, with a delay, returns 0 and deletes
    /// them after that time.
    #[pyo3(signature = (prefix, delay=None))]
    fn delete_prefix(&self, py: Python<'_>, prefix: Key, delay: Option<Timeout>) -> PyResult<u64> {
        let delay = delay.map_or(Duration::ZERO, |it| it.0);
        self.handle
            .call(py, |store| store.delete_prefix(&prefix.0, delay))
    }

    /// Whether append, multi_get and multi_set are single operations of the store.
    fn has_extended_api(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.store(py).map(|_| true)
    }

    /// Sets the timeout of later calls on this store and on every PrefixStore around it.
    fn set_timeout(&self, py: Python<'_>, timeout: Timeout) -> PyResult<()> {
        self.handle.store(py)?.set_timeout(Some(timeout.0));
        Ok(())
    }

    /// The timeout of calls without an explicit timeout.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<Option<Duration>> {
        Ok(self.handle.store(py)?.timeout())
    }

    /// Closes this store: calls in progress in other threads fail, and so do later calls. Stops the server that this
    /// store hosts, unless another store of the process shares the server.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py)
    }

    /// Keeps a reference to the object until this store is closed.
    fn _keep(&self, py: Python<'_>, object: Py<PyAny>) -> PyResult<()> {
        self.handle.store(py)?;
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(object);
        Ok(())
    }

    /// Opens the same store again.
    fn clone(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Self::new(
            self.handle.call(py, |store| store.clone_store())?,
        ))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let store = self.handle.store(py);
        store.map_or_else(
            |_| "Store(closed)".to_owned(),
            |store| format!("Store({:?})", store.label()),
        )
    }

    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        slf.get().handle.store(py)?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(slf: &Bound<'_, Self>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        slf.call_method0("close")?;
        Ok(())
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(PyTypeError::new_err(format!(
            "cannot pickle a {}: it belongs to this process. Send its address or path, and open it there",
            slf.get_type().name()?
        )))
    }
}
