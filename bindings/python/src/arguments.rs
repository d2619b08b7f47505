//! Arguments as PyTorch takes them: keys and values as text or bytes, timeouts as `timedelta` or seconds.

use std::path::Path;
use std::time::Duration;

use c10d_store::{Credentials, Secret, key_from_bytes};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};

use crate::errors::raise;

/// A key: text or bytes.
#[derive(Debug)]
pub(crate) struct Key(pub(crate) String);

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self(text.to_str()?.to_owned()));
        }
        let Ok(bytes) = object.cast::<PyBytes>() else {
            return Err(wrong_type(&object, "a key is str"));
        };
        Ok(Self(key_from_bytes(bytes.as_bytes()).into_owned()))
    }
}

/// A list of keys. A single text is refused: it would count as a list of its characters.
#[derive(Debug)]
pub(crate) struct Keys(pub(crate) Vec<Key>);

impl<'py> FromPyObject<'_, 'py> for Keys {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            return Err(wrong_type(&object, "keys are a list of str"));
        }
        Ok(Self(items(&object)?))
    }
}

impl Keys {
    pub(crate) fn as_strs(&self) -> Vec<&str> {
        self.0.iter().map(|key| key.0.as_str()).collect()
    }
}

/// A value: bytes, or text, which is encoded as UTF-8.
#[derive(Debug)]
pub(crate) struct Value(pub(crate) Vec<u8>);

impl<'py> FromPyObject<'_, 'py> for Value {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(bytes.as_bytes().to_vec()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self(text.to_str()?.as_bytes().to_vec()));
        }
        match object.cast::<PyByteArray>() {
            Ok(bytes) => Ok(Self(bytes.to_vec())),
            Err(_) => Err(wrong_type(&object, "a value is bytes or str")),
        }
    }
}

/// A list of values. A single value is refused: its elements are no values.
#[derive(Debug)]
pub(crate) struct Values(pub(crate) Vec<Value>);

impl<'py> FromPyObject<'_, 'py> for Values {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.extract::<Value>().is_ok() {
            return Err(wrong_type(&object, "values are a list of bytes or str"));
        }
        Ok(Self(items(&object)?))
    }
}

/// The ranks of a group.
#[derive(Debug)]
pub(crate) struct Ranks(pub(crate) Vec<usize>);

impl<'py> FromPyObject<'_, 'py> for Ranks {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(items(&object)?))
    }
}

/// The elements of any iterable. Its `__len__` may return anything: no memory is reserved for it.
fn items<'py, T>(object: &Borrowed<'_, 'py, PyAny>) -> PyResult<Vec<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let mut items = Vec::new();
    for item in object.try_iter()? {
        items.push(item?.extract()?);
    }
    Ok(items)
}

/// A time limit: `timedelta` or seconds; zero checks once without waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeout(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let seconds = match object.extract::<f64>() {
            Ok(seconds) => seconds,
            Err(_) => match object.call_method0("total_seconds") {
                Ok(seconds) => seconds.extract()?,
                Err(_) => {
                    return Err(wrong_type(
                        &object,
                        "a timeout is datetime.timedelta or seconds",
                    ));
                }
            },
        };
        match Duration::try_from_secs_f64(seconds) {
            Ok(timeout) => Ok(Self(timeout)),
            Err(error) => Err(PyValueError::new_err(format!(
                "a timeout of {seconds} s is impossible: {error}"
            ))),
        }
    }
}

fn wrong_type(object: &Borrowed<'_, '_, PyAny>, expected: &str) -> PyErr {
    let name = object.get_type().name();
    let name = name.map_or_else(|_| "another type".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{expected}, not {name}"))
}

/// The credentials in a file that `c10d secret new` has written.
///
/// # Errors
/// `DistStoreError` if the file cannot be read, does not contain a secret, or other users can read it.
pub(crate) fn read_secret_file(py: Python<'_>, path: &Path) -> PyResult<Credentials> {
    let credentials = Secret::read_file(path).and_then(Credentials::from_secrets);
    credentials.map_err(|error| raise(py, "DistStoreError", error.to_string()))
}
