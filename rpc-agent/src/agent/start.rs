//! Starts an agent, and ends it.

use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, ListenOptions, Protocol, listen};
use c10d_store::Store;

use super::handle::AgentHandle;
use super::serve::Service;
use super::start_error::StartError;
use crate::directory::Directory;
use crate::options::AgentOptions;
use crate::peer::Config;
use crate::registry::Registry;
use crate::runtime::{Parts, Poller, Runtime};
use crate::termination::TerminationError;
use crate::worker::WorkerInfo;

/// The agent of a worker: it serves the functions of its [`Registry`] to the others of its group, and calls theirs.
/// See the [crate's documentation](crate).
///
/// Dropping it ends it at once, as [`Agent::shutdown_now`] does.
pub struct Agent {
    handle: AgentHandle,
}

impl Agent {
    /// Joins the group, whose members meet in `store`, and serves the functions of `registry`.
    ///
    /// Blocks until all workers of a group of fixed size are there, at most for
    /// [`AgentOptions::with_start_timeout`].
    ///
    /// # Errors
    /// [`StartError`]. A duplicate name or rank is an error on every worker of a group of fixed size,
    /// and names both claimants.
    pub fn start(
        options: AgentOptions,
        registry: Registry,
        store: Arc<dyn Store>,
    ) -> Result<Self, StartError> {
        let deadline = Deadline::after(Instant::now(), options.start_timeout);
        let me = WorkerInfo::new(&options.name, options.rank)?;
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
        let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
        // 0 stands for "any" where incarnations are compared.
        let incarnation = fastrand::Rng::with_seed(seed ^ u64::from(options.rank)).u64(1..);
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
            functions: registry.functions().clone(),
        };
        let parts = Parts {
            config,
            registry_id: registry.id(),
            directory,
            store,
            poll,
            sockets,
            listeners,
            tls_server,
            options,
            seed,
        };
        let runtime = Runtime::new(parts).map_err(StartError::Socket)?;
        let handle = AgentHandle::new(runtime);
        let service = Service {
            agent: handle.clone(),
            registry,
        };
        // On failure the agent is dropped, which ends what was started.
        let agent = Self { handle };
        let started = agent.handle.runtime().start(Arc::new(service));
        started.map_err(StartError::Thread)?;
        Ok(agent)
    }

    /// Makes calls from this worker. Clone it where an owned one is needed, as for another thread.
    #[must_use]
    pub fn handle(&self) -> &AgentHandle {
        &self.handle
    }

    /// Waits until no call is outstanding anywhere in the group. All workers of the group must call it.
    ///
    /// The functions of this worker are served on. Blocks until all others have come and none of them
    /// has anything under way, at most for `timeout`. `None` waits indefinitely, and zero checks once.
    ///
    /// # Errors
    /// [`TerminationError`], which names who had not come.
    pub fn join(&self, timeout: impl Into<Option<Duration>>) -> Result<(), TerminationError> {
        self.handle.runtime().join(deadline_of(timeout))
    }

    /// Ends the agent together with all others of the group: no worker leaves while another still needs
    /// it, however calls are nested. All workers of a group of fixed size must call it. Of a group whose
    /// members come and go, this worker leaves when its own calls have ended.
    ///
    /// Blocks at most for `timeout` until all are ready to end (`None` waits indefinitely, and zero checks
    /// once), and then until the functions that run here have returned. The agent has ended afterwards,
    /// even after an error. A second time it does nothing, and from a second thread it waits for the first
    /// one.
    ///
    /// Not for a function or a callback of this agent, which would wait for itself: there it fails at
    /// once.
    ///
    /// # Errors
    /// [`TerminationError`], which names who had not come.
    pub fn shutdown(&self, timeout: impl Into<Option<Duration>>) -> Result<(), TerminationError> {
        let runtime = self.handle.runtime();
        let deadline = deadline_of(timeout);
        match runtime.begin_ending(deadline) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                runtime.stop();
                return Err(error);
            }
        }
        let result = runtime.leave(deadline);
        runtime.stop();
        result
    }

    /// Ends the agent at once: calls and retries that are under way fail, others' calls to this worker
    /// fail, too. Blocks until the functions that run here have returned. A second time it does nothing.
    pub fn shutdown_now(&self) {
        self.handle.runtime().stop();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.handle.runtime().stop();
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Agent").field(self.handle.me()).finish()
    }
}

fn deadline_of(timeout: impl Into<Option<Duration>>) -> Deadline {
    timeout.into().map_or(Deadline::NEVER, |timeout| {
        Deadline::after(Instant::now(), timeout)
    })
}

/// What the others are told to connect to.
fn advertised_host(options: &AgentOptions) -> String {
    if let Some(host) = options.advertised_host.as_ref().or(options.host.as_ref()) {
        return host.clone();
    }
    match outward_address() {
        Ok(address) => address.to_string(),
        Err(error) => {
            log::warn!(
                "cannot find this machine's address ({error}): the others are told 127.0.0.1"
            );
            "127.0.0.1".to_owned()
        }
    }
}

/// The address from which this machine would reach others. Sends nothing: connecting a datagram socket
/// only chooses a route. The target is an address kept for documentation.
fn outward_address() -> io::Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9")?;
    Ok(socket.local_addr()?.ip())
}
