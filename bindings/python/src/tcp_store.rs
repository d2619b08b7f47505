//! `TCPStore`: a client of a server, PyTorch's or ours, and optionally its host.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{
    DEFAULT_TIMEOUT, ErrorContext, Operation, Store as _, StoreError, TcpStore, TcpStoreOptions,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::arguments::Timeout;
use crate::call::{INTERRUPT_GRACE, run_interruptible};
use crate::errors::store_error;
use crate::store::Store;

/// The first attempt of a client to connect, and the longest: after Ctrl-C, an attempt ends on a thread of its own.
const FIRST_ATTEMPT: Duration = Duration::from_secs(2);
const LONGEST_ATTEMPT: Duration = Duration::from_secs(30);

/// How often a host counts the workers, as PyTorch does.
const COUNT_INTERVAL: Duration = Duration::from_millis(10);

/// Connects to the server of a store; the master hosts it as well. With a world size, the workers are counted, and the
/// master waits until all have joined. The timeout is 300 s by default; use_libuv has no effect.
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
    ) -> PyResult<PyClassInitializer<Self>> {
        let _ = use_libuv;
        if world_size == Some(0) {
            return Err(PyValueError::new_err(
                "the world size of a TCPStore cannot be 0",
            ));
        }
        let listener = match master_listen_fd.filter(|_| is_master) {
            Some(fd) => Some(take_listener(py, fd)?),
            None => None,
        };
        let opening = Opening {
            host: host_name,
            port,
            // PyTorch takes a negative number for none.
            world_size: world_size
                .and_then(|size| usize::try_from(size).ok())
                .filter(|_| wait_for_workers),
            is_master,
            timeout: timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0),
            multi_tenant,
            listener,
            interrupted: Arc::default(),
        };
        let interrupted = Arc::clone(&opening.interrupted);
        let store = run_interruptible(
            py,
            INTERRUPT_GRACE,
            move |_| interrupted.store(true, Ordering::Relaxed),
            move || opening.open(),
        )?;
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
        let store = slf.as_super().handle.ask(py, |store| store.clone_store())?;
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

/// A store that is being opened.
struct Opening {
    host: String,
    port: u16,
    world_size: Option<usize>,
    is_master: bool,
    timeout: Duration,
    multi_tenant: bool,
    listener: Option<TcpListener>,
    interrupted: Arc<AtomicBool>,
}

impl Opening {
    fn open(mut self) -> Result<TcpStore, StoreError> {
        let started = Instant::now();
        let store = self.connect(started)?;
        store.set_timeout(Some(self.timeout));
        if let Some(world_size) = self.world_size {
            self.join(&store, world_size, started)?;
        }
        Ok(store)
    }

    /// A client tries again until the timeout, in attempts, so that after an interrupt its thread ends soon.
    fn connect(&mut self, started: Instant) -> Result<TcpStore, StoreError> {
        let mut attempt = if self.is_master {
            self.timeout
        } else {
            FIRST_ATTEMPT
        };
        loop {
            let left = self.timeout.saturating_sub(started.elapsed());
            let attempt_started = Instant::now();
            let mut options = TcpStoreOptions::default()
                .with_master(self.is_master)
                .with_multi_tenant(self.multi_tenant)
                .with_timeout(left.min(attempt));
            if let Some(listener) = self.listener.take() {
                options = options.with_listener(listener);
            }
            match TcpStore::open(&self.host, self.port, options) {
                Err(StoreError::Connect { .. })
                    if left > attempt
                        && attempt_started.elapsed() >= attempt / 2
                        && !self.interrupted.load(Ordering::Relaxed) => {}
                Err(StoreError::Connect { context, source }) => {
                    let elapsed = started.elapsed();
                    let context = ErrorContext { elapsed, ..context };
                    return Err(StoreError::Connect { context, source });
                }
                result => return result,
            }
            attempt = (attempt * 2).min(LONGEST_ATTEMPT);
        }
    }

    /// Counts this worker; the master waits for the others (docs/wire.md, 7.2).
    fn join(
        &self,
        store: &TcpStore,
        world_size: usize,
        started: Instant,
    ) -> Result<(), StoreError> {
        let mut joined = store.count_worker()?;
        let expected = i64::try_from(world_size).unwrap_or(i64::MAX);
        while self.is_master && joined < expected {
            let elapsed = started.elapsed();
            let context = |operation| ErrorContext::new(operation, [], store.label(), elapsed);
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(StoreError::Interrupted {
                    context: context(Operation::Open),
                });
            }
            let left = self.timeout.saturating_sub(elapsed);
            if left.is_zero() {
                return Err(StoreError::WorkersMissing {
                    context: context(Operation::Open),
                    joined,
                    world_size,
                });
            }
            thread::sleep(left.min(COUNT_INTERVAL));
            joined = store.worker_count()?;
        }
        Ok(())
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
