//! `FileStore`: a store in a file.

use std::path::PathBuf;
use std::sync::Arc;

use c10d_store::FileStoreOptions;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::{cancel, run};
use crate::cells::SetOnce;
use crate::errors::store_error;
use crate::store::Store;

/// A store in a file that the workers share. With a world size, the last of that many stores to close removes the file.
#[pyclass(extends = Store, subclass, frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct FileStore {
    path: SetOnce<PathBuf>,
}

#[pymethods]
impl FileStore {
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords), text_signature = "(file_name, world_size=-1)")]
    fn new(
        _arguments: &Bound<'_, PyTuple>,
        _keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Store::unopened()).add_subclass(Self {
            path: SetOnce::unset(),
        })
    }

    #[pyo3(signature = (file_name, world_size=-1))]
    fn __init__(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        file_name: PathBuf,
        world_size: i64,
    ) -> PyResult<()> {
        let world_size = usize::try_from(world_size).ok().filter(|size| *size > 0);
        let mut options = FileStoreOptions::default().with_cancel(cancel());
        if let Some(world_size) = world_size {
            options = options.with_world_size(world_size);
        }
        let store = run(py, || {
            c10d_store::FileStore::open_with(&file_name, &options)
        })?;
        let store = store.map_err(|error| store_error(py, &error))?;
        slf.as_super().handle.open(Arc::new(store))?;
        slf.path.set(file_name)
    }

    /// Opens the same file again.
    fn clone(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let store = slf
            .as_super()
            .handle
            .call(py, |store| store.clone_store())?;
        Py::new(py, Self::around(store, slf.path.get()?.clone()))
    }

    /// The path of the file, as given.
    #[getter]
    fn path(&self) -> PyResult<String> {
        Ok(self.path.get()?.to_string_lossy().into_owned())
    }

    fn __repr__(slf: PyRef<'_, Self>) -> PyResult<String> {
        let closed = slf.as_super().handle.state();
        Ok(format!("FileStore({:?}{closed})", slf.path.get()?))
    }
}

impl FileStore {
    fn around(store: Arc<dyn c10d_store::Store>, path: PathBuf) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Store::new(store)).add_subclass(Self {
            path: SetOnce::new(path),
        })
    }
}
