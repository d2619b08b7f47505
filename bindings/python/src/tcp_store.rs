//! `TCPStore`: a client of a server, PyTorch's or ours, and optionally its host.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use c10d_store::{DEFAULT_TIMEOUT, TcpStore, TcpStoreOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::arguments::Timeout;
use crate::call::run;
use crate::errors::store_error;
use crate::secret::read_secret_file;
use crate::store::Store;

/// Connects to the server of a store; the master hosts it as well. With a world size, the workers are counted, and the
/// master waits until all have joined. The timeout is 300 s by default; use_libuv has no effect. With a secret_file,
/// which PyTorch has not, only processes that have the same secret take part.
#[pyclass(extends = Store, frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct TCPStore {
    host: String,
    port: u16,
    is_master: bool,
}

#[pymethods]
impl TCPStore {
    #[new]
    #[pyo3(signature = (
        host_name,
        port,
        world_size=None,
        is_master=false,
        timeout=None,
        wait_for_workers=true,
        multi_tenant=false,
        master_listen_fd=None,
        use_libuv=true,
        *,
        secret_file=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "PyTorch's arguments")]
    fn new(
        py: Python<'_>,
        host_name: String,
        port: u16,
        world_size: Option<i64>,
        is_master: bool,
        timeout: Option<Timeout>,
        wait_for_workers: bool,
        multi_tenant: bool,
        master_listen_fd: Option<i32>,
        use_libuv: Option<bool>,
        secret_file: Option<PathBuf>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let _ = use_libuv;
        if world_size == Some(0) {
            return Err(PyValueError::new_err(
                "the world size of a TCPStore cannot be 0",
            ));
        }
        let mut options = TcpStoreOptions::default()
            .with_master(is_master)
            .with_multi_tenant(multi_tenant)
            .with_wait_for_workers(wait_for_workers)
            .with_timeout(timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0));
        // PyTorch takes a negative number for none.
        if let Some(world_size) = world_size.and_then(|size| usize::try_from(size).ok()) {
            options = options.with_world_size(world_size);
        }
        if let Some(path) = secret_file {
            options = options.with_credentials(read_secret_file(py, &path)?);
        }
        if let Some(fd) = master_listen_fd.filter(|_| is_master) {
            options = options.with_listener(take_listener(py, fd)?);
        }
        let store = run(py, || TcpStore::open(&host_name, port, options))?;
        let store = store.map_err(|error| store_error(py, &error))?;
        let tcp_store = Self {
            host: store.host().to_owned(),
            port: store.port(),
            is_master,
        };
        Ok(PyClassInitializer::from(Store::new(Arc::new(store))).add_subclass(tcp_store))
    }

    /// Opens another connection to the same server.
    fn clone(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let store = slf
            .as_super()
            .handle
            .call(py, |store| store.clone_store())?;
        let clone = Self {
            host: slf.host.clone(),
            port: slf.port,
            is_master: false,
        };
        Py::new(
            py,
            PyClassInitializer::from(Store::new(store)).add_subclass(clone),
        )
    }

    /// The server's host, as given.
    #[getter]
    fn host(&self) -> &str {
        &self.host
    }

    /// The server's port; for a master with port 0, the one that the system chose.
    #[getter]
    const fn port(&self) -> u16 {
        self.port
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let master = if slf.is_master {
            ", is_master=True"
        } else {
            ""
        };
        let closed = slf.as_super().handle.state();
        format!("TCPStore({:?}, {}{master}{closed})", slf.host, slf.port)
    }
}

/// The listening socket with this number, which the store takes over, as PyTorch's does.
fn take_listener(py: Python<'_>, fd: i32) -> PyResult<TcpListener> {
    let this = pidfd_open(getpid(), PidfdFlags::empty());
    let copy = this.and_then(|this| pidfd_getfd(this, fd, PidfdGetfdFlags::empty()));
    let copy = copy.map_err(|error| {
        PyValueError::new_err(format!("cannot take over master_listen_fd {fd}: {error}"))
    })?;
    py.import("os")?.call_method1("close", (fd,))?;
    Ok(copy.into())
}
