//! Creates the handlers of the built-in backends, `c10d` and `static`, from parameters.

use std::sync::Arc;

use c10d_store::{Store, StoreAddress, TcpStore};

use crate::shell::c10d_backend::{C10D_BACKEND, C10dBackend};
use crate::shell::dynamic_rendezvous::{DynamicRendezvous, DynamicRendezvousOptions};
use crate::shell::handler::RendezvousHandler;
use crate::shell::open_store::{OpenStore, is_tcp, open_store};
use crate::shell::reconnection::{ReconnectingStore, connect_to};
use crate::shell::static_rendezvous::{STATIC_BACKEND, StaticRendezvous};
use crate::values::endpoint::Endpoint;
use crate::values::error::RendezvousError;
use crate::values::parameters::RendezvousParameters;
use crate::values::parameters_error::{DEFAULT_PORT, ParametersError};
use crate::values::settings::RendezvousSettings;
use crate::values::start_warnings::{StartWarning, WarningKind};

/// The settings that a `c10d` rendezvous reads: all of PyTorch's, `share_store`
/// ([`DynamicRendezvousOptions::with_shared_store`]), `spare_wait` ([`RendezvousSettings::with_spare_wait`]) and
/// `workers_store` ([`RendezvousParameters::shares_store`]).
pub const C10D_SETTINGS: &[&str] = &[
    "store_type",
    "read_timeout",
    "is_host",
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "cas_backoff_max_seconds",
    "share_store",
    "spare_wait",
    "workers_store",
    // The launcher always sets it; only the static rendezvous reads it.
    "timeout",
];

/// Creates the handler of the backend that `parameters` name: `c10d` or `static`.
///
/// Blocks as [`create_c10d`] does for `c10d`, and not at all for `static`.
///
/// ```
/// use elastic_rendezvous::{RendezvousParameters, create_handler};
///
/// # fn main() -> Result<(), elastic_rendezvous::RendezvousError> {
/// let parameters = RendezvousParameters::new("c10d", "localhost:0", "job", 1, 1)?;
/// let node = create_handler(&parameters)?;
/// assert_eq!(node.next_rendezvous()?.world_size, 1);
/// assert!(node.shutdown());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`RendezvousError::UnknownBackend`] for another name, or the error of the backend.
pub fn create_handler(
    parameters: &RendezvousParameters,
) -> Result<Arc<dyn RendezvousHandler>, RendezvousError> {
    match parameters.backend() {
        C10D_BACKEND => Ok(Arc::new(create_c10d(parameters)?)),
        STATIC_BACKEND => Ok(Arc::new(StaticRendezvous::new(parameters)?)),
        name => Err(RendezvousError::UnknownBackend {
            name: name.to_owned(),
            known: [C10D_BACKEND, STATIC_BACKEND].map(str::to_owned).into(),
        }),
    }
}

/// The warnings about the start of a node that are known before it starts.
#[must_use]
pub fn start_warnings(parameters: &RendezvousParameters) -> Vec<StartWarning> {
    if parameters.backend() != C10D_BACKEND {
        return Vec::new();
    }
    let unknown = parameters.unknown_keys(C10D_SETTINGS).into_iter();
    let mut warnings: Vec<StartWarning> = unknown
        .map(|key| format!("the rendezvous setting {key:?} has no effect: it is unknown").into())
        .collect();
    let is_shared = parameters.shares_store().unwrap_or(false);
    let has_secret = parameters.credentials().is_some();
    let mut warn_of_secret = |is_so, text| {
        warnings
            .extend((has_secret && is_so).then(|| StartWarning::new(WarningKind::Secret, text)));
    };
    warn_of_secret(
        !parameters.has_relays() && !is_shared && parameters.max_nodes() > 1,
        "the workers' store is open to everyone that reaches its port; with --relay it also has the secret",
    );
    warn_of_secret(
        !is_tcp(parameters),
        "the secret does not protect the rendezvous' store, which is a file: its permissions do",
    );
    warnings
}

/// Opens the store of a rendezvous and creates the handler of this node.
///
/// Blocks until the store answers, for at most the join timeout and some seconds of name lookups: the host
/// may start after its clients, which is logged after 1 s and then every 30 s.
///
/// # Errors
/// [`RendezvousError::Parameters`] for an invalid endpoint or setting, [`RendezvousError::Connection`]
/// when the store cannot be opened, [`RendezvousError::TemporaryFile`] when a file store without a path
/// cannot create one, [`RendezvousError::Thread`] when the system cannot start a thread.
pub fn create_c10d(
    parameters: &RendezvousParameters,
) -> Result<DynamicRendezvous, RendezvousError> {
    let settings = RendezvousSettings::from_parameters(parameters)?;
    for warning in start_warnings(parameters) {
        parameters.start_warnings().push(warning);
    }
    let is_shared = parameters.shares_store()?;
    let has_agent_store = parameters.get_as_bool("share_store")?.unwrap_or(true);
    let OpenStore {
        store,
        address,
        hosted,
        own_host,
        candidate,
    } = open_store(parameters, &settings)?;
    let mut for_rounds: Option<Arc<dyn Store>> = None;
    let store = if is_tcp(parameters) {
        let followed = address.clone().filter(|_| parameters.store().is_some());
        let store = keep_connected(store, followed, hosted.as_deref(), parameters, &settings)?;
        for_rounds = Some(Arc::new(store.without_repeats()));
        Arc::new(store)
    } else {
        store
    };
    // Over the store that repeats requests: what creates the key and claims the store may be sent twice.
    let mut backend = C10dBackend::new(Arc::clone(&store), &settings.run_id)?;
    let address = address.filter(|_| is_shared);
    let mut options = DynamicRendezvousOptions::new()
        .with_shared_store(has_agent_store)
        .with_workers_port(parameters.workers_port())
        .with_own_host(own_host);
    let needs_relays = settings.max_nodes > 1 || hosted.is_none();
    if let Some(address) = &address {
        if parameters.credentials().is_some() && !parameters.has_relays() && needs_relays {
            let nodes = settings.max_nodes;
            return Err(ParametersError::SecretForWorkers { nodes }.into());
        }
        backend = backend.with_workers_here(hosted.is_some())?;
        options = options.with_workers_at(address.clone());
    }
    if let Some(for_rounds) = for_rounds {
        options = options.with_loop_store(Arc::clone(&for_rounds));
        backend = backend.with_reconnecting_store(for_rounds);
    }
    if let Some(hook) = parameters.server_hook() {
        if let Some(server) = hosted.as_ref().and_then(|store| store.server()) {
            hook.call(server);
        }
        options = options.with_server_hook(hook.clone());
    }
    if let Some(credentials) = parameters.credentials() {
        if parameters.has_relays() && (settings.max_nodes > 1 || address.is_some()) {
            options = options.with_workers_credentials(credentials.clone());
        } else if settings.max_nodes == 1 {
            options = options.with_own_user_only(credentials.clone());
        }
    }
    let node = DynamicRendezvous::new(Arc::new(backend), store, settings, options)?;
    let node = match candidate {
        Some(candidate) => node.with_candidate(candidate),
        None => node,
    };
    Ok(match hosted {
        Some(hosted) => node.with_hosted_store(hosted),
        None => node,
    })
}

/// Returns a handle of the same store that reconnects when its connection is lost.
fn keep_connected(
    store: Arc<dyn Store>,
    followed: Option<StoreAddress>,
    hosted: Option<&TcpStore>,
    parameters: &RendezvousParameters,
    settings: &RendezvousSettings,
) -> Result<ReconnectingStore, RendezvousError> {
    let target = match followed {
        Some(followed) => followed,
        None => {
            let endpoint = parameters.endpoint().parse::<Endpoint>();
            let target = endpoint.map_err(ParametersError::from)?;
            target.with_default_port(DEFAULT_PORT).into()
        }
    };
    // A process reaches its own server by an address, and any other server by the name of the endpoint.
    let endpoint = parameters.endpoint().parse::<Endpoint>().ok();
    let own_name = endpoint.filter(|_| hosted.is_some());
    let credentials = parameters.credentials().cloned().map(|it| match &own_name {
        Some(endpoint) => it.with_server_name(endpoint.host()),
        None => it,
    });
    let connect = connect_to(target, hosted, credentials);
    Ok(ReconnectingStore::of_connections(
        store,
        Arc::new(connect),
        settings.dead_after(),
    ))
}
