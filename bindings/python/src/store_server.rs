//! `StoreServer`: the server of a TCP store, without a client.

use std::path::PathBuf;
use std::sync::Arc;

use c10d_journal::SqliteJournal;
use c10d_socket::{Cancel, ProcessBound};
use c10d_store::journal::JournalSource;
use c10d_store::{ServerOptions, TcpStoreServer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::arguments::read_secret_file;
use crate::call::run;
use crate::cells::Owned;
use crate::errors::store_error;

/// Serves a store over TCP from one thread, until it is closed. For port 0 the system chooses a port. A host of "" is
/// all interfaces. Every process that reaches the port can read and change the store, or with a secret_file every process
/// that has the secret. With a dir the store is kept in this directory, and continues with what that has: see
/// docs/how-to/durable.md.
#[pyclass(frozen, weakref, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct StoreServer {
    host: String,
    port: u16,
    server: Owned<ProcessBound<TcpStoreServer>>,
}

#[pymethods]
impl StoreServer {
    #[new]
    #[pyo3(signature = (host="127.0.0.1", port=0, *, secret_file=None, dir=None))]
    fn new(
        py: Python<'_>,
        host: &str,
        port: u16,
        secret_file: Option<PathBuf>,
        dir: Option<PathBuf>,
    ) -> PyResult<Self> {
        let mut options = ServerOptions::default().with_groups(c10d_membership::groups);
        if let Some(path) = secret_file {
            options = options.with_credentials(read_secret_file(py, &path)?);
        }
        if let Some(dir) = dir {
            let open = move |_: &Cancel| Ok(Box::new(SqliteJournal::open(&dir)?) as _);
            options = options.with_journal(JournalSource {
                open: Arc::new(open),
                on_failure: None,
            });
        }
        let address = (if host.is_empty() { "::" } else { host }, port);
        let server = run(py, || TcpStoreServer::bind(address, options))?;
        let server = server.map_err(|error| store_error(py, &error))?;
        Ok(Self {
            host: host.to_owned(),
            port: server.local_addr().port(),
            server: Owned::new("server", ProcessBound::new(server)),
        })
    }

    /// The host, as given.
    #[getter]
    fn host(&self) -> &str {
        &self.host
    }

    /// The port. For port 0, this is the port that the system chose.
    #[getter]
    const fn port(&self) -> u16 {
        self.port
    }

    /// The number of connections; 0 after close.
    #[getter]
    fn connection_count(&self) -> usize {
        self.server
            .read(|server| server.get_anywhere().connection_count())
            .unwrap_or(0)
    }

    /// The error that made the server stop because its directory could not be written, as text. Confirmed writes are in
    /// the directory. None while it serves, after close, and without a dir.
    #[getter]
    fn journal_failure(&self) -> Option<String> {
        let failure = |server: &ProcessBound<TcpStoreServer>| {
            let failure = server.get_anywhere().journal_failure();
            failure.map(ToString::to_string)
        };
        self.server.read(failure).flatten()
    }

    /// Stops the server, and its clients lose their connections. Without a dir its data is lost.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server.take_here()?;
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
