//! `PrefixStore`: a namespace within another store.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::store::Store;

/// The keys of another store below a prefix: k is prefix/k there. Shares the other store's timeout, and closes it.
#[pyclass(extends = Store, frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct PrefixStore {
    prefix: String,
    underlying: Py<PyAny>,
}

#[pymethods]
impl PrefixStore {
    #[new]
    fn new(
        py: Python<'_>,
        prefix: String,
        store: Bound<'_, PyAny>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let Ok(underlying) = store.cast::<Store>() else {
            let name = store.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "a store is a c10d_rs.Store, not {name}"
            )));
        };
        let inner = underlying.get().handle.store(py)?;
        let wrapped = c10d_store::PrefixStore::new(prefix.clone(), inner);
        Ok(
            PyClassInitializer::from(Store::new(Arc::new(wrapped))).add_subclass(Self {
                prefix,
                underlying: store.unbind(),
            }),
        )
    }

    /// Wraps a clone of the underlying store.
    fn clone(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let store = slf.underlying.bind(py).call_method0("clone")?;
        Py::new(py, Self::new(py, slf.prefix.clone(), store)?)
    }

    /// Closes this store and the one that it wraps.
    fn close(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<()> {
        slf.as_super().handle.close(py)?;
        slf.underlying.bind(py).call_method0("close")?;
        Ok(())
    }

    /// The store that this one wraps.
    #[getter]
    fn underlying_store(&self, py: Python<'_>) -> Py<PyAny> {
        self.underlying.clone_ref(py)
    }

    /// The innermost store, which wraps no other.
    #[getter]
    fn _underlying_non_prefix_store(&self, py: Python<'_>) -> Py<PyAny> {
        let mut store = self.underlying.clone_ref(py);
        while let Ok(prefix) = store.bind(py).cast::<Self>() {
            let next = prefix.get().underlying.clone_ref(py);
            store = next;
        }
        store
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let underlying = self.underlying.bind(py).repr()?;
        Ok(format!("PrefixStore({:?}, {underlying})", self.prefix))
    }
}
