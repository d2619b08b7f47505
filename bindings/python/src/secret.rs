//! The shared secret of a store, from a file.

use std::path::Path;

use c10d_store::{Credentials, Secret};
use pyo3::prelude::*;

use crate::errors::raise;

/// The credentials in a file that `c10d secret new` has written.
///
/// # Errors
/// `DistStoreError` if the file cannot be read, is no secret, or other users can read it.
pub(crate) fn read_secret_file(py: Python<'_>, path: &Path) -> PyResult<Credentials> {
    let credentials = Secret::read_file(path).and_then(Credentials::from_secrets);
    credentials.map_err(|error| raise(py, "DistStoreError", error.to_string()))
}
