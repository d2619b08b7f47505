//! `StoreServer`: the server of a TCP store, without a client.

use std::path::PathBuf;

use c10d_store::{ServerOptions, TcpStoreServer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::call::run;
use crate::errors::store_error;
use crate::owned::Owned;
use crate::secret::read_secret_file;

/// Serves a store over TCP from one thread, until it is closed. For port 0 the system chooses a port. A host of "" is
/// all interfaces. Every process that reaches the port can read and change the store, or with a secret_file every process
/// that has the secret.
#[pyclass(frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct StoreServer {
    host: String,
    port: u16,
    server: Owned<TcpStoreServer>,
}

#[pymethods]
impl StoreServer {
    #[new]
    #[pyo3(signature = (host="127.0.0.1", port=0, *, secret_file=None))]
    fn new(py: Python<'_>, host: &str, port: u16, secret_file: Option<PathBuf>) -> PyResult<Self> {
        let mut options = ServerOptions::default();
        if let Some(path) = secret_file {
            options = options.with_credentials(read_secret_file(py, &path)?);
        }
        let address = (if host.is_empty() { "::" } else { host }, port);
        let server = run(py, || TcpStoreServer::bind(address, options))?;
        let server = server.map_err(|error| store_error(py, &error))?;
        Ok(Self {
            host: host.to_owned(),
            port: server.local_addr().port(),
            server: Owned::new("server", server),
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
    fn connection_count(&self) -> usize {
        self.server
            .read(TcpStoreServer::connection_count)
            .unwrap_or(0)
    }

    /// Stops the server. Its data is lost, and its clients lose their connections.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server.take()?;
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
        let closed = self.server.read(|_| "").unwrap_or(", closed");
        format!("StoreServer({:?}, {}{closed})", self.host, self.port)
    }
}
