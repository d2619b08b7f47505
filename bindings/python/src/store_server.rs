//! `StoreServer`: the server of a TCP store, without a client.

use std::mem;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use c10d_store::{ServerOptions, StoreError, TcpStoreServer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::call::run_interruptible;
use crate::errors::store_error;
use crate::handle::check_process;

/// Serves a store over TCP from one thread, until it is closed. For port 0 the system chooses a port. A host of "" is
/// all interfaces: every process that reaches the port can read and change the store.
#[pyclass(frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct StoreServer {
    process: u32,
    host: String,
    port: u16,
    server: Mutex<Option<TcpStoreServer>>,
}

#[pymethods]
impl StoreServer {
    #[new]
    #[pyo3(signature = (host="127.0.0.1", port=0))]
    fn new(py: Python<'_>, host: &str, port: u16) -> PyResult<Self> {
        let address = (if host.is_empty() { "::" } else { host }.to_owned(), port);
        let bind =
            move || TcpStoreServer::bind((address.0.as_str(), address.1), ServerOptions::default());
        let server: Result<TcpStoreServer, StoreError> = run_interruptible(py, |_| (), bind)?;
        let server = server.map_err(|error| store_error(py, &error))?;
        Ok(Self {
            process: process::id(),
            host: host.to_owned(),
            port: server.local_addr().port(),
            server: Mutex::new(Some(server)),
        })
    }

    /// The host, as given.
    #[getter]
    fn host(&self) -> &str {
        &self.host
    }

    /// The port; the one that the system chose for port 0.
    #[getter]
    const fn port(&self) -> u16 {
        self.port
    }

    /// The number of connections; 0 after close.
    #[getter]
    fn connection_count(&self) -> PyResult<usize> {
        check_process(self.process, "server")?;
        Ok(self
            .server()
            .as_ref()
            .map_or(0, TcpStoreServer::connection_count))
    }

    /// Stops the server. Its data is lost, and its clients lose their connections.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process, "server")?;
        let server = self.server().take();
        py.detach(|| drop(server));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "cannot pickle a StoreServer: it belongs to this process. Send its host and port, and open a TCPStore there",
        ))
    }

    fn __repr__(&self) -> String {
        let closed = if self.server().is_none() {
            ", closed"
        } else {
            ""
        };
        format!("StoreServer({:?}, {}{closed})", self.host, self.port)
    }
}

impl StoreServer {
    fn server(&self) -> MutexGuard<'_, Option<TcpStoreServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // In a forked child there is no thread to stop, and the parent's server goes on.
        if self.process != process::id() {
            mem::forget(self.server().take());
        }
    }
}
