//! Python's exceptions for the errors of a store.

use c10d_socket::OtherProcess;
use c10d_store::{ListenError, StoreError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The module of the exception classes.
const MODULE: &str = "c10d_rs._errors";

/// The exception for an error of a store.
pub(crate) fn store_error(py: Python<'_>, error: &StoreError) -> PyErr {
    if let StoreError::OtherProcess { source, .. } = error {
        return forked(*source);
    }
    let text = match pytorch_text(error) {
        Some(text) => format!("{text}: {error}"),
        None => error.to_string(),
    };
    raise(py, class_name(error), text)
}

/// The exception of a forked child that uses what its parent has opened.
pub(crate) fn forked(error: OtherProcess) -> PyErr {
    PyRuntimeError::new_err(format!(
        "{error}, or start the child with the method \"spawn\""
    ))
}

/// PyTorch's text for an error that programs and PyTorch's own tests recognize by its words.
fn pytorch_text(error: &StoreError) -> Option<String> {
    Some(match error {
        StoreError::Timeout { context, timeout } => {
            let keys = context.keys.split(", ").map(|key| key.trim_matches('"'));
            // PyTorch shows keys as they are in its server.
            let slash = if context.store.starts_with("TCP store") {
                "/"
            } else {
                ""
            };
            let keys: Vec<String> = keys.map(|key| format!("{slash}{key}")).collect();
            let ms = timeout.as_millis();
            format!("wait timeout after {ms}ms, keys: {}", keys.join(", "))
        }
        StoreError::BarrierTimeout {
            context, timeout, ..
        } => {
            let (ms, key) = (timeout.as_millis(), context.keys.trim_matches('"'));
            format!("barrier timeout after {ms}ms, key: {key}")
        }
        StoreError::WorkersMissing {
            context,
            joined,
            world_size,
        } => {
            let seconds = context.elapsed.as_secs();
            format!(
                "Timed out after {seconds} seconds waiting for clients. {joined}/{world_size} clients joined"
            )
        }
        StoreError::Listen(ListenError::Address { .. }) => {
            "The server socket has failed to listen on any local network address".to_owned()
        }
        StoreError::Connect { source, .. } if source.is_timeout() => {
            let (ms, target) = (source.elapsed().as_millis(), source.target());
            let (host, port) = (target.host(), target.port());
            format!(
                "The client socket has timed out after {ms}ms while trying to connect to ({host}, {port})"
            )
        }
        _ => return None,
    })
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
        StoreError::MemoryFull { .. } => "StoreFullError",
        StoreError::Journal(_) => "StoreJournalError",
        _ => "DistStoreError",
    }
}
