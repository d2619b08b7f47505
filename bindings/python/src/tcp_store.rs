//! `TCPStore`: a client of a server, PyTorch's or ours, and optionally its host.

use std::env;
use std::ffi::CString;
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use c10d_store::{
    DEFAULT_TIMEOUT, ServerOptions, StoreError, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use pyo3::exceptions::{PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::arguments::Timeout;
use crate::arguments::read_secret_file;
use crate::call::{cancel, run};
use crate::cells::SetOnce;
use crate::errors::store_error;
use crate::store::Store;

/// Connects to the server of a store; the master hosts it as well. With a world size, the workers are counted, and the
/// master waits until all have joined. The timeout is 300 s by default; use_libuv has no effect. With a secret_file,
/// which PyTorch has not, only processes that have the same secret take part.
#[pyclass(extends = Store, subclass, frozen, module = "c10d_rs")]
#[derive(Debug)]
pub(crate) struct TCPStore {
    server: SetOnce<Server>,
}

#[derive(Debug, Clone)]
struct Server {
    host: String,
    port: u16,
    /// This store started it.
    is_ours: bool,
    use_libuv: bool,
}

#[pymethods]
impl TCPStore {
    #[new]
    #[pyo3(
        signature = (*_arguments, **_keywords),
        text_signature = "(host_name, port, world_size=None, is_master=False, timeout=None, wait_for_workers=True, multi_tenant=False, master_listen_fd=None, use_libuv=True, *, secret_file=None)"
    )]
    fn new(
        _arguments: &Bound<'_, PyTuple>,
        _keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Store::unopened()).add_subclass(Self {
            server: SetOnce::unset(),
        })
    }

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
    fn __init__(
        slf: PyRef<'_, Self>,
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
    ) -> PyResult<()> {
        if world_size == Some(0) {
            return Err(PyValueError::new_err("TCPStore world size cannot be 0"));
        }
        let mut options = TcpStoreOptions::default()
            .with_master(is_master)
            .with_server_options(ServerOptions::default().with_groups(c10d_membership::groups))
            .with_multi_tenant(multi_tenant)
            .with_wait_for_workers(wait_for_workers)
            .with_cancel(cancel())
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
        let chooses_addresses = is_master && master_listen_fd.is_none();
        let mut store = run(py, || TcpStore::open(&host_name, port, options.clone()))?;
        if let Err(StoreError::Listen(error)) = &store
            && error.is_address_in_use()
            && is_store_of_agent(port)
        {
            let client = options.with_master(false);
            store = run(py, || TcpStore::open(&host_name, port, client))?;
        }
        let store = store.map_err(|error| store_error(py, &error))?;
        if chooses_addresses {
            warn_if_exposed(py, &store)?;
        }
        let server = Server {
            host: store.host().to_owned(),
            port: store.port(),
            is_ours: store.server().is_some(),
            use_libuv: use_libuv.unwrap_or(true),
        };
        slf.as_super().handle.open(Arc::new(store))?;
        slf.server.set(server)
    }

    /// Opens another connection to the same server.
    fn clone(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let store = slf
            .as_super()
            .handle
            .call(py, |store| store.clone_store())?;
        let server = Server {
            is_ours: false,
            ..slf.server.get()?.clone()
        };
        let clone = Self {
            server: SetOnce::new(server),
        };
        Py::new(
            py,
            PyClassInitializer::from(Store::new(store)).add_subclass(clone),
        )
    }

    /// The server's host, as given.
    #[getter]
    fn host(&self) -> PyResult<&str> {
        Ok(&self.server.get()?.host)
    }

    /// The server's port. For a master with port 0, this is the port that the system chose.
    #[getter]
    fn port(&self) -> PyResult<u16> {
        Ok(self.server.get()?.port)
    }

    /// The value of use_libuv, which has no effect.
    #[getter]
    #[pyo3(name = "libuvBackend")]
    fn libuv_backend(&self) -> PyResult<bool> {
        Ok(self.server.get()?.use_libuv)
    }

    fn __repr__(slf: PyRef<'_, Self>) -> PyResult<String> {
        let Server {
            host,
            port,
            is_ours,
            ..
        } = slf.server.get()?;
        let master = if *is_ours { ", is_master=True" } else { "" };
        let closed = slf.as_super().handle.state();
        Ok(format!("TCPStore({host:?}, {port}{master}{closed})"))
    }
}

/// Whether the launcher of this process serves the store at the port. As in PyTorch, a master is a client there.
fn is_store_of_agent(port: u16) -> bool {
    let is_used = env::var("TORCHELASTIC_USE_AGENT_STORE");
    let is_used = is_used.is_ok_and(|it| it == "1" || it.eq_ignore_ascii_case("true"));
    is_used && env::var("MASTER_PORT").is_ok_and(|it| it.parse() == Ok(port))
}

/// Warns if a master listens on all interfaces, although its host is not the address that means them.
///
/// # Errors
/// If the program's filters make an exception of the warning.
fn warn_if_exposed(py: Python<'_>, store: &TcpStore) -> PyResult<()> {
    let is_all = |ip: IpAddr| ip.is_unspecified();
    let is_wanted = store.host().parse().is_ok_and(is_all);
    let server = store.server().map(TcpStoreServer::local_addr);
    if is_wanted || !server.is_some_and(|address| is_all(address.ip())) {
        return Ok(());
    }
    let text = format!(
        "the store at port {} listens on all interfaces, because {} has no address of this machine that others can reach: \
         pass the host name \"localhost\", or a name that leads to such an address",
        store.port(),
        store.host()
    );
    let text = CString::new(text)?;
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
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
