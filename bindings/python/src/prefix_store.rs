//! `PrefixStore`: a namespace within another store.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::cells::SetOnce;
use crate::errors::store_error;
use crate::store::Store;

/// The keys of another store below a prefix: k is prefix/k there. Shares the other store's timeout, and closes it.
#[pyclass(extends = Store, subclass, frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct PrefixStore {
    wrapped: SetOnce<Wrapped>,
}

#[derive(Debug)]
struct Wrapped {
    prefix: String,
    underlying: Py<PyAny>,
}

#[pymethods]
impl PrefixStore {
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords), text_signature = "(prefix, store)")]
    fn new(
        _arguments: &Bound<'_, PyTuple>,
        _keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Store::unopened()).add_subclass(Self {
            wrapped: SetOnce::unset(),
        })
    }

    fn __init__(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        prefix: String,
        store: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if store.is_none() {
            return Err(PyValueError::new_err("store argument cannot be None"));
        }
        let Ok(underlying) = store.cast::<Store>() else {
            let name = store.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "a store is a c10d_rs.Store, not {name}"
            )));
        };
        let inner = underlying.get().handle.store(py)?;
        let prefixed = c10d_store::PrefixStore::nest(prefix.clone(), inner);
        let prefixed = prefixed.map_err(|error| store_error(py, &error))?;
        slf.as_super().handle.open(Arc::new(prefixed))?;
        slf.wrapped.set(Wrapped {
            prefix,
            underlying: store.unbind(),
        })
    }

    /// Wraps a clone of the underlying store.
    fn clone(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let wrapped = self.wrapped.get()?;
        let store = wrapped.underlying.bind(py).call_method0("clone")?;
        let class = py.get_type::<Self>();
        Ok(class.call1((&wrapped.prefix, store))?.unbind())
    }

    /// Closes this store and the store that it wraps.
    fn close(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<()> {
        slf.as_super().end(py)?;
        let wrapped = slf.wrapped.get()?;
        wrapped.underlying.bind(py).call_method0("close")?;
        Ok(())
    }

    /// The store that this one wraps.
    #[getter]
    fn underlying_store(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.wrapped.get()?.underlying.clone_ref(py))
    }

    /// The innermost store, which wraps no other.
    #[getter]
    fn _underlying_non_prefix_store(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut store = self.underlying_store(py)?;
        while let Ok(prefix) = store.bind(py).cast::<Self>() {
            let next = prefix.get().underlying_store(py)?;
            store = next;
        }
        Ok(store)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let wrapped = self.wrapped.get()?;
        let underlying = wrapped.underlying.bind(py).repr()?;
        Ok(format!("PrefixStore({:?}, {underlying})", wrapped.prefix))
    }
}
