//! Makes the parts of an agent, and joins its group.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use c10d_socket::{Cancel, Deadline, HostPort, ListenOptions, Protocol, listen};
use c10d_store::Store;

use super::acceptor::AcceptOptions;
use super::driver::{DialOptions, Driver};
use super::lifecycle::{Polling, Runtime};
use super::poller::Poller;
use super::retrier::Retrier;
use crate::directory::{Directory, DirectoryError, publish_failure};
use crate::error::StartError;
use crate::options::AgentOptions;
use crate::peer::{Config, Functions, IncomingLimits};
use crate::sync::{Lock, Monitor};
use crate::termination::FIRST_SUM_KEY;
use crate::worker::WorkerInfo;

impl Runtime {
    /// An agent that has joined its group, and has no thread yet.
    pub(crate) fn open(
        options: AgentOptions,
        functions: &Functions,
        store: Arc<dyn Store>,
    ) -> Result<Arc<Self>, StartError> {
        let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
        // 0 means "any" where incarnations are compared.
        let incarnation = fastrand::Rng::with_seed(seed ^ u64::from(options.rank)).u64(1..);
        let me = WorkerInfo::new(&options.name, options.rank)?;
        let is_static = options.world_size.is_some();
        let identity = (me.clone(), seed, incarnation);
        let opened = Self::open_as(identity, options, functions, Arc::clone(&store));
        opened.inspect_err(|error| {
            if is_static && concerns_group(error) {
                let why = error.to_string();
                publish_failure(&store, &me, incarnation, &why, FIRST_SUM_KEY);
            }
        })
    }

    /// Reports to the group that this agent, which has joined it, could not start.
    pub(crate) fn publish_failure(&self, error: &StartError) {
        let driver = &self.driver;
        if !driver.directory.is_dynamic() {
            let incarnation = driver.directory.incarnation();
            let why = error.to_string();
            publish_failure(&self._store, driver.me(), incarnation, &why, FIRST_SUM_KEY);
        }
    }

    fn open_as(
        (me, seed, incarnation): (WorkerInfo, u64, u64),
        options: AgentOptions,
        functions: &Functions,
        store: Arc<dyn Store>,
    ) -> Result<Arc<Self>, StartError> {
        let deadline = Deadline::after(Instant::now(), options.start_timeout);
        let tls_server = match &options.credentials {
            Some(credentials) => Some(credentials.server(Protocol::Rpc)?),
            None => None,
        };
        let mut listen_options = ListenOptions::default()
            .with_port(options.port)
            .with_cancel(options.cancel.clone())
            .with_socket_options(options.socket.clone());
        if let Some(host) = &options.host {
            listen_options = listen_options.with_host(host.as_str());
        }
        let listeners = listen(&listen_options)?;
        let port = listeners
            .first()
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
            .and_then(std::net::TcpListener::local_addr)
            .map_err(StartError::Socket)?
            .port();
        let address = HostPort::new(advertised_host(&options), port).to_string();
        let (poll, sockets) = Poller::open().map_err(StartError::Socket)?;
        let own_store = store.with_cancel(&options.cancel).clone_store();
        let own_store = own_store.map_err(StartError::Store)?;
        let own_store = own_store.with_cancel(&Cancel::NEVER);
        let directory = Directory::join(
            own_store,
            me.clone(),
            &address,
            incarnation,
            options.world_size,
            deadline,
            &options.cancel,
        )?;
        let config = Config {
            me,
            incarnation,
            message_bytes_max: options.message_bytes_max,
            backlog_bytes_max: options.backlog_bytes_max,
            requests_queued_max: options.requests_queued_max,
            connect_timeout: options.connect_timeout,
            functions: functions.clone(),
        };
        let limits = IncomingLimits {
            message_bytes_max: options.message_bytes_max,
            ..IncomingLimits::default()
        };
        let dials = DialOptions {
            socket_options: options.socket.clone(),
            credentials: options.credentials.clone(),
            limits,
        };
        let driver = Arc::new_cyclic(|driver| {
            Driver::new(config, directory, sockets, &options, dials, driver)
        });
        let accept = AcceptOptions {
            socket_options: options.socket,
            tls: tls_server,
            limits,
        };
        let poller = Poller::new(&driver, poll, listeners, accept).map_err(StartError::Socket)?;
        Ok(Arc::new(Self {
            retries: Retrier::new(&driver, seed),
            driver,
            polling: Monitor::new(Polling::new(poller)),
            _store: store,
            turn: Arc::default(),
            cancel: options.cancel,
            ended: Lock::default(),
        }))
    }
}

/// Whether the group misses the worker that has failed, and does not know it. A failed store cannot report it.
const fn concerns_group(error: &StartError) -> bool {
    match error {
        StartError::Store(_) => false,
        StartError::Directory(error) => matches!(
            **error,
            DirectoryError::NameTaken { .. } | DirectoryError::OwnAddress { .. }
        ),
        _ => true,
    }
}

/// The host that the other workers connect to.
fn advertised_host(options: &AgentOptions) -> String {
    if let Some(host) = options.advertised_host.as_ref().or(options.host.as_ref()) {
        return host.clone();
    }
    match outward_address() {
        Ok(address) => address.to_string(),
        Err(error) => {
            log::warn!(
                "cannot find this machine's address ({error}), so the other workers get 127.0.0.1"
            );
            "127.0.0.1".to_owned()
        }
    }
}

/// The local address that this machine uses to reach other machines. Sends nothing: connecting a datagram socket only
/// chooses a route. The target is an address reserved for documentation.
fn outward_address() -> io::Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9")?;
    Ok(socket.local_addr()?.ip())
}
