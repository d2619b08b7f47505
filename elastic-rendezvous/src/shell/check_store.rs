//! The store at which machines are checked before a job: served and reached as the store of its rendezvous would be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, DialStage, HostPort, is_loopback_name, sleep};
use c10d_store::{ListenOn, StoreError, StoreExt, StoreHandle as _, TcpStore, TcpStoreOptions};

use crate::shell::bootstrap::{Protection, serve};
use crate::shell::listener_watch::ListenerWatch;
use crate::shell::open_store::own_host;
use crate::shell::own_host::given_addresses;
use crate::shell::static_rendezvous::STATIC_BACKEND;
use crate::shell::this_host::{SystemResolver, is_this_host};
use crate::values::endpoint::Endpoint;
use crate::values::error::RendezvousError;
use crate::values::parameters::RendezvousParameters;
use crate::values::parameters_error::{DEFAULT_PORT, ParametersError};
use crate::values::store_access::StoreRoute;

/// The timeout of an attempt to connect, and the time between two attempts.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(200);

/// How long the serving node may take to write its mark, and to take part in the check on a port of this machine.
const MARK_TIMEOUT: Duration = Duration::from_secs(1);

/// How long one request may take.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest value that a node of the check writes.
const VALUE_BYTES_MAX: usize = 256 << 10;

/// A connection to the store at which the nodes of a check meet, and its server on one of them.
#[derive(Debug)]
#[non_exhaustive]
pub struct CheckStore {
    /// A connection to the store, and its server on the node that the endpoint names.
    pub store: Arc<TcpStore>,
    /// The endpoint with its port.
    pub endpoint: HostPort,
    /// Whether this node serves the store.
    pub is_host: bool,
    /// The prefix of all keys of the check.
    pub prefix: String,
}

/// A store that is served for a check as the workers' store of a job would be.
#[derive(Debug)]
#[non_exhaustive]
pub struct CheckServer {
    /// The store at the address that this node advertises.
    pub store: TcpStore,
    /// The name in the certificate of this node, if it has one.
    pub name: String,
}

impl CheckStore {
    /// Serves a store at the address that this node advertises, on the ports for the workers' store. The node that serves the store of
    /// the check advertises the address at which the first node of another host has reached it, so call this there when all nodes
    /// have connected. May block for some seconds to look up names.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] or the error of the launcher if it cannot listen there.
    pub fn serve_workers(
        &self,
        parameters: &RendezvousParameters,
    ) -> Result<CheckServer, RendezvousError> {
        let is_one_host = parameters.max_nodes() == 1 || is_loopback_name(self.endpoint.host());
        let route = StoreRoute::new(self.endpoint.clone(), self.store.connection_ends());
        let remote = route.remote.map(|remote| remote.ip());
        let hosted = self.is_host.then(|| Arc::clone(&self.store));
        let own_host = own_host(parameters, is_one_host, remote).with_route(route, hosted);
        let advertised = own_host.advertised(&[]);
        let protection = parameters.credentials().cloned();
        let protection = protection.map_or(Protection::Open, Protection::Job);
        let (run_id, ports) = (parameters.run_id(), parameters.workers_port());
        let store = serve(run_id, &own_host, &advertised, &protection, ports)?;
        store.set_timeout(Some(READ_TIMEOUT));
        let name = own_host.name_for_certificates().to_owned();
        Ok(CheckServer { store, name })
    }
}

/// Opens the store for a check of the machines of a job: serves it on the node that the endpoint names, by the rule of the
/// launcher, and connects to it on other nodes. Does not write into a store that another program serves. Blocks until
/// the deadline at most, and for some seconds of name lookups and questions.
///
/// # Errors
/// [`RendezvousError::OtherListener`] if anything else answers at the endpoint, [`RendezvousError::Connection`] if this node can
/// neither serve nor reach the store, and [`RendezvousError::Parameters`] for an endpoint that is not a host and a port.
pub fn open_check_store(
    parameters: &RendezvousParameters,
    deadline: Deadline,
) -> Result<CheckStore, RendezvousError> {
    let endpoint: Endpoint = (parameters.endpoint().parse()).map_err(ParametersError::from)?;
    let target = endpoint.with_default_port(DEFAULT_PORT);
    let is_host = match parameters.get_as_bool("is_host")? {
        _ if parameters.backend() == STATIC_BACKEND => parameters.get_as_int("rank")? == Some(0),
        Some(is_host) => is_host,
        None => {
            let deadline = Deadline::after(Instant::now(), ATTEMPT_TIMEOUT);
            is_this_host(target.host(), &SystemResolver::new(deadline))
        }
    };
    let opening = Opening {
        parameters,
        target,
        mark: format!("c10d/doctor/{}/open", parameters.run_id()),
    };
    if is_host {
        match opening.serve() {
            Ok(store) => return Ok(opening.opened(store, true)),
            // Another node of the check on this machine may serve.
            Err(StoreError::Listen(error)) if error.is_address_in_use() => {}
            Err(error) => return Err(opening.failed(error)),
        }
    }
    let soon = Deadline::after(Instant::now(), ATTEMPT_TIMEOUT);
    let store = opening.connect(if is_host { soon } else { deadline })?;
    Ok(opening.opened(store, false))
}

struct Opening<'a> {
    parameters: &'a RendezvousParameters,
    target: HostPort,
    /// The key that marks the store of a check of this job.
    mark: String,
}

impl Opening<'_> {
    fn options(&self, timeout: Duration) -> TcpStoreOptions {
        let options = TcpStoreOptions::default()
            .with_timeout(timeout)
            .with_reply_bytes_max(VALUE_BYTES_MAX)
            .with_cancel(self.parameters.cancel().clone());
        match self.parameters.credentials() {
            Some(credentials) => options.with_credentials(credentials.clone()),
            None => options,
        }
    }

    fn opened(&self, store: TcpStore, is_host: bool) -> CheckStore {
        store.set_timeout(Some(READ_TIMEOUT));
        CheckStore {
            endpoint: HostPort::new(self.target.host(), store.port()),
            store: Arc::new(store.with_cancel(&Cancel::NEVER)),
            is_host,
            prefix: format!("c10d/doctor/{}", self.parameters.run_id()),
        }
    }

    fn failed(&self, error: StoreError) -> RendezvousError {
        RendezvousError::connection(self.parameters.run_id(), error)
    }

    /// Serves a store without the journal of the job and without its limits.
    fn serve(&self) -> Result<TcpStore, StoreError> {
        let options = self
            .options(ATTEMPT_TIMEOUT)
            .with_master(true)
            .with_listen_on(ListenOn::HostIfKnown)
            .with_listen_also_on(given_addresses(self.parameters.local_addr()));
        let store = TcpStore::open(self.target.host(), self.target.port(), options)?;
        store.set(&self.mark, b"1")?;
        Ok(store)
    }

    fn connect(&self, deadline: Deadline) -> Result<TcpStore, RendezvousError> {
        let parameters = self.parameters;
        let (credentials, cancel) = (parameters.credentials(), parameters.cancel());
        let watch = ListenerWatch::new(&self.target, credentials, parameters.run_id(), cancel);
        loop {
            let left = deadline.remaining(Instant::now()).unwrap_or_default();
            let options = self.options(left.min(ATTEMPT_TIMEOUT));
            let opened = TcpStore::open(self.target.host(), self.target.port(), options);
            // A wait for a key changes nothing.
            let error = match opened.and_then(|store| {
                store.get_timeout(&self.mark, MARK_TIMEOUT)?;
                Ok(store)
            }) {
                Ok(store) => return Ok(store),
                Err(error) => error,
            };
            let left = deadline.remaining(Instant::now()).unwrap_or_default();
            if is_of_other_listener(&error)
                && let Some(found) = watch.ask()
            {
                return Err(watch.other_listener(found));
            }
            if left.is_zero() || sleep(left.min(ATTEMPT_INTERVAL), [cancel]).is_err() {
                return Err(self.failed(error));
            }
        }
    }
}

/// Whether something that is not a store of a check has accepted the connection.
fn is_of_other_listener(error: &StoreError) -> bool {
    match error {
        StoreError::Protocol { .. } | StoreError::Timeout { .. } => true,
        StoreError::Connect { source, .. } => {
            let stages = source.failures().iter().map(|failure| failure.stage());
            stages
                .into_iter()
                .any(|stage| matches!(stage, DialStage::Handshake(_)))
        }
        _ => false,
    }
}
