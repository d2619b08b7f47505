//! `HashStore`: a store in this process.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::store::Store;

/// A store within one process, for tests and single-process jobs.
#[pyclass(extends = Store, frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct HashStore;

#[pymethods]
impl HashStore {
    #[new]
    fn new() -> PyClassInitializer<Self> {
        Self::around(Arc::new(c10d_store::HashStore::new()))
    }

    /// Opens the same store again, with a timeout of its own.
    fn clone(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let store = slf
            .as_super()
            .handle
            .call(py, |store| store.clone_store())?;
        Py::new(py, Self::around(store))
    }

    fn __repr__(slf: PyRef<'_, Self>) -> &'static str {
        if slf.as_super().handle.state().is_empty() {
            "HashStore()"
        } else {
            "HashStore(closed)"
        }
    }
}

impl HashStore {
    fn around(store: Arc<dyn c10d_store::Store>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Store::new(store)).add_subclass(Self)
    }
}
