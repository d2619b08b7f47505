//! `HashStore`: a store in this process.

use std::sync::Arc;

use c10d_store::StoreHandle;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::cancel;
use crate::store::Store;

/// A store within one process, for tests and single-process jobs.
#[pyclass(extends = Store, subclass, frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct HashStore;

#[pymethods]
impl HashStore {
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords), text_signature = "()")]
    fn new(
        _arguments: &Bound<'_, PyTuple>,
        _keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Store::unopened()).add_subclass(Self)
    }

    fn __init__(slf: PyRef<'_, Self>) -> PyResult<()> {
        let store = c10d_store::HashStore::new().with_cancel(&cancel());
        slf.as_super().handle.open(store)
    }

    /// Opens the same store again, with a separate timeout.
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
