//! `Group`: all ranks of a job, over the crate `c10d`.

use std::collections::HashMap;
use std::sync::Arc;

use c10d::{GroupError, GroupOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::arguments::{Ranks, Timeout, Value};
use crate::call::{cancel, run};
use crate::cells::Owned;
use crate::errors::{raise, store_error};
use crate::store::Store;

/// Joins the group of all workers of this job, and returns when all have joined. Reads torchrun's variables: RANK,
/// WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The timeout, 300 s by default, also applies to the group's later calls.
#[pyfunction]
#[pyo3(signature = (name=None, timeout=None))]
pub(crate) fn init_from_env(
    py: Python<'_>,
    name: Option<String>,
    timeout: Option<Timeout>,
) -> PyResult<Group> {
    // This is a copy, because another thread may change the environment in the meantime.
    let environment = py.import("os")?.getattr("environ")?.call_method0("copy")?;
    let environment: HashMap<String, String> = environment.extract()?;
    let options = options(name, timeout);
    let group = run(py, || {
        options.init_from(&|name| environment.get(name).cloned())
    })?;
    Ok(Group::new(group.map_err(|error| group_error(py, &error))?))
}

/// The ranks of a job. All of them make the same calls in the same order.
#[pyclass(frozen, weakref, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct Group {
    group: Owned<Arc<c10d::Group>>,
    rank: usize,
    world_size: usize,
    name: String,
}

#[pymethods]
impl Group {
    /// Joins a group over any store, as a rank of a world size, and returns when all have joined.
    #[staticmethod]
    #[pyo3(signature = (store, rank, world_size, name=None, timeout=None))]
    fn join(
        py: Python<'_>,
        store: PyRef<'_, Store>,
        rank: usize,
        world_size: usize,
        name: Option<String>,
        timeout: Option<Timeout>,
    ) -> PyResult<Self> {
        let store = store.handle.store(py)?;
        let options = options(name, timeout);
        let group = run(py, || options.join(store, rank, world_size))?;
        Ok(Self::new(group.map_err(|error| group_error(py, &error))?))
    }

    /// The number of this process, from 0.
    #[getter]
    const fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    #[getter]
    const fn world_size(&self) -> usize {
        self.world_size
    }

    /// The name of the group.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The store of the group. Closing it also makes the group unusable.
    #[getter]
    fn store(&self, py: Python<'_>) -> PyResult<Store> {
        Ok(Store::new(Arc::clone(self.group.get(py)?.store())))
    }

    /// Gives the root's value to all ranks, and returns it when all have it. The other ranks pass None.
    #[pyo3(signature = (value=None, root=0, timeout=None))]
    fn broadcast<'py>(
        &self,
        py: Python<'py>,
        value: Option<Value>,
        root: usize,
        timeout: Option<Timeout>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.call(py, |group| {
            let value = value.as_ref().map(|value| value.0.as_slice());
            match timeout {
                Some(Timeout(timeout)) => group.broadcast_timeout(root, value, Some(timeout)),
                None => group.broadcast(root, value),
            }
        })?;
        Ok(PyBytes::new(py, &value))
    }

    /// Waits until all ranks have called this.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<()> {
        self.call(py, |group| match timeout {
            Some(Timeout(timeout)) => group.barrier_timeout(Some(timeout)),
            None => group.barrier(),
        })
    }

    /// Returns the values of all ranks, in order of rank.
    #[pyo3(signature = (value, timeout=None))]
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        value: Value,
        timeout: Option<Timeout>,
    ) -> PyResult<Bound<'py, PyList>> {
        let values = self.call(py, |group| match timeout {
            Some(Timeout(timeout)) => group.all_gather_bytes_timeout(&value.0, Some(timeout)),
            None => group.all_gather_bytes(&value.0),
        })?;
        PyList::new(py, values.iter().map(|value| PyBytes::new(py, value)))
    }

    /// Makes a group of some of the ranks; only these ranks call it. Their order determines the new ranks.
    #[pyo3(signature = (name, ranks, timeout=None))]
    fn split(
        &self,
        py: Python<'_>,
        name: String,
        ranks: Ranks,
        timeout: Option<Timeout>,
    ) -> PyResult<Self> {
        let group = self.call(py, |group| match timeout {
            Some(Timeout(timeout)) => group.split_timeout(&name, &ranks.0, Some(timeout)),
            None => group.split(&name, &ranks.0),
        })?;
        Ok(Self::new(group))
    }

    /// Waits until all ranks have called this, the last call of a group, and closes it. The rank that hosts the store
    /// leaves last.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, c10d::Group::finish)?;
        self.close(py)
    }

    /// Leaves the group without waiting for the other ranks. Stops the store if this rank hosts it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.group.take();
        py.detach(|| drop(group));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Finishes the group; only closes it after an exception, since the other ranks may not come.
    fn __exit__(
        &self,
        py: Python<'_>,
        exception_type: &Bound<'_, PyAny>,
        _exception: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let is_open = self.group.read(|_| ()).is_some();
        if exception_type.is_none() && is_open {
            self.finish(py)
        } else {
            self.close(py)
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(pyo3::exceptions::PyTypeError::new_err(
            "cannot pickle a Group: it belongs to this process",
        ))
    }

    fn __repr__(&self) -> String {
        let closed = self.group.read(|_| "").unwrap_or(", closed");
        format!(
            "Group({:?}, rank={}, world_size={}{closed})",
            self.name, self.rank, self.world_size
        )
    }
}

impl Group {
    fn new(group: c10d::Group) -> Self {
        Self {
            rank: group.rank(),
            world_size: group.world_size(),
            name: group.name().to_owned(),
            group: Owned::new("group", Arc::new(group)),
        }
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&c10d::Group) -> Result<T, GroupError> + Send,
    ) -> PyResult<T> {
        let group = self.group.get(py)?;
        run(py, move || call(&group))?.map_err(|error| group_error(py, &error))
    }
}

fn options(name: Option<String>, timeout: Option<Timeout>) -> GroupOptions {
    let mut options = GroupOptions::default().with_cancel(cancel());
    if let Some(name) = name {
        options = options.with_name(name);
    }
    if let Some(Timeout(timeout)) = timeout {
        options = options.with_timeout(timeout);
    }
    options
}

fn group_error(py: Python<'_>, error: &GroupError) -> PyErr {
    match error {
        GroupError::Missing { ranks, .. } => {
            let raised = raise(py, "MissingRanksError", error.to_string());
            match raised.value(py).setattr("ranks", ranks) {
                Ok(()) => raised,
                Err(failed) => failed,
            }
        }
        GroupError::Store { source, .. } => store_error(py, source),
        _ => raise(py, "GroupError", error.to_string()),
    }
}
