//! Python's exceptions for the errors of a store.

use c10d_store::StoreError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::owned::forked;

/// The module of the exception classes.
const MODULE: &str = "c10d_rs._errors";

/// The exception for an error of a store.
pub(crate) fn store_error(py: Python<'_>, error: &StoreError) -> PyErr {
    match error {
        StoreError::OtherProcess { source, .. } => forked(*source),
        _ => raise(py, class_name(error), error.to_string()),
    }
}

/// An exception of the class with this name.
pub(crate) fn raise(py: Python<'_>, class: &str, message: String) -> PyErr {
    let class = py
        .import(MODULE)
        .and_then(|module| module.call_method1("class_of", (class,)));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, message),
        // The interpreter is shutting down, and has taken the module away.
        Err(_) => PyRuntimeError::new_err(message),
    }
}

const fn class_name(error: &StoreError) -> &'static str {
    match error {
        StoreError::Timeout { .. }
        | StoreError::BarrierTimeout { .. }
        | StoreError::WorkersMissing { .. } => "StoreTimeoutError",
        StoreError::Connect { .. }
        | StoreError::Listen(_)
        | StoreError::ConnectionLost { .. }
        | StoreError::NoReply { .. }
        | StoreError::Protocol { .. } => "DistNetworkError",
        StoreError::QueueEmpty { .. } => "QueueEmptyError",
        StoreError::LimitExceeded { .. }
        | StoreError::InvalidArgument { .. }
        | StoreError::NotANumber { .. } => "StoreValueError",
        StoreError::Unsupported { .. } => "StoreUnsupportedError",
        StoreError::Journal(_) => "StoreJournalError",
        _ => "DistStoreError",
    }
}
