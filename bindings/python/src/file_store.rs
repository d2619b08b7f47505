//! `FileStore`: a store in a file.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::call::run;
use crate::errors::store_error;
use crate::store::Store;

/// A store in a file that the workers share. With a world size, the last of that many stores to close removes the file.
#[pyclass(extends = Store, frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct FileStore {
    path: PathBuf,
}

#[pymethods]
impl FileStore {
    #[new]
    #[pyo3(
        signature = (file_name, world_size=-1),
        text_signature = "(file_name, world_size=-1)"
    )]
    fn new(
        py: Python<'_>,
        file_name: PathBuf,
        world_size: i64,
    ) -> PyResult<PyClassInitializer<Self>> {
        let world_size = usize::try_from(world_size).ok().filter(|size| *size > 0);
        let store = run(py, || c10d_store::FileStore::open(&file_name, world_size))?;
        let store = store.map_err(|error| store_error(py, &error))?;
        Ok(Self::around(Arc::new(store), file_name))
    }

    /// Opens the same file again.
    fn clone(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let store = slf
            .as_super()
            .handle
            .call(py, |store| store.clone_store())?;
        Py::new(py, Self::around(store, slf.path.clone()))
    }

    /// The path of the file, as given.
    #[getter]
    fn path(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let closed = slf.as_super().handle.state();
        format!("FileStore({:?}{closed})", slf.path)
    }
}

impl FileStore {
    fn around(store: Arc<dyn c10d_store::Store>, path: PathBuf) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Store::new(store)).add_subclass(Self { path })
    }
}
