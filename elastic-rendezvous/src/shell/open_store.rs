//! Opens or serves the store of a `c10d` rendezvous.

use std::fs::OpenOptions;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, Credentials, Deadline, DialStage, HostPort, is_loopback_name, own_address_towards,
    resolve,
};
use c10d_store::{
    FileStore, ListenOn, Store, StoreAddress, StoreError, StoreHandle, TcpStore, TcpStoreOptions,
    in_brief,
};

use crate::shell::bootstrap::protected;
use crate::shell::candidate::Candidate;
use crate::shell::listener_watch::ListenerWatch;
use crate::shell::own_host::{OwnHost, addresses_of_interface, given_addresses};
use crate::shell::this_host::{SystemResolver, is_this_host};
use crate::values::endpoint::Endpoint;
use crate::values::error::RendezvousError;
use crate::values::parameters::RendezvousParameters;
use crate::values::parameters_error::{DEFAULT_PORT, ParametersError};
use crate::values::settings::RendezvousSettings;
use crate::values::store_access::{StoreDirectory, StoreRoute};

/// The limit for looking up this machine's names.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout of one attempt to connect. The first is short because its failure is logged, so that a
/// mistyped endpoint shows at once.
const FIRST_CONNECT_SLICE: Duration = Duration::from_secs(1);
const CONNECT_SLICE: Duration = Duration::from_secs(5);

/// The interval between log lines after the first.
const CONNECT_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// How many random names of 64 bits are tried for a temporary file.
const TEMPORARY_NAMES_TRIED: usize = 16;

/// The store of a rendezvous.
#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    /// The address at which all nodes reach the store; `None` for a file.
    pub(crate) address: Option<StoreAddress>,
    /// A client of the same store, if this process serves it.
    pub(crate) hosted: Option<Arc<TcpStore>>,
    /// The known addresses of this node.
    pub(crate) own_host: OwnHost,
    /// The server that this process has ready for a store that moves.
    pub(crate) candidate: Option<Candidate>,
}

/// Whether the store has a server, and no file.
pub(crate) fn is_tcp(parameters: &RendezvousParameters) -> bool {
    let store_type = parameters.get("store_type").unwrap_or("tcp").trim();
    store_type.eq_ignore_ascii_case("tcp")
}

/// Opens or serves the store that `parameters` name. Blocks for at most the join timeout and some seconds of name lookups.
pub(crate) fn open_store(
    parameters: &RendezvousParameters,
    settings: &RendezvousSettings,
) -> Result<OpenStore, RendezvousError> {
    let store_type = parameters.get("store_type").unwrap_or("tcp").trim();
    match store_type.to_lowercase().as_str() {
        "tcp" => match parameters.store() {
            Some(directory) => open_moving(parameters, directory, settings),
            None => open_tcp(parameters, settings),
        },
        "file" => Ok(OpenStore {
            store: open_file(parameters)?,
            address: None,
            hosted: None,
            own_host: own_host(parameters, parameters.max_nodes() == 1, None),
            candidate: None,
        }),
        _ => Err(RendezvousError::Parameters(ParametersError::Setting {
            key: "store_type".to_owned(),
            value: store_type.to_owned(),
            expected: "tcp or file",
        })),
    }
}

fn open_file(parameters: &RendezvousParameters) -> Result<Arc<dyn Store>, RendezvousError> {
    let endpoint = parameters.endpoint().trim();
    let path = if endpoint.is_empty() {
        let names =
            std::iter::repeat_with(|| format!("c10d-rendezvous-{:016x}", fastrand::u64(..)));
        create_private_file(&std::env::temp_dir(), names.take(TEMPORARY_NAMES_TRIED)).map_err(
            |source| RendezvousError::TemporaryFile {
                run_id: parameters.run_id().to_owned(),
                source,
            },
        )?
    } else {
        PathBuf::from(endpoint)
    };
    let store = FileStore::open(path, None)
        .map_err(|error| RendezvousError::connection(parameters.run_id(), error))?;
    Ok(Arc::new(store))
}

/// Creates an empty file with mode 0600 under the first of `names` that does not exist. Other users can
/// write to a temporary folder, so existing files are not opened and links are not followed.
fn create_private_file(
    folder: &Path,
    names: impl Iterator<Item = String>,
) -> Result<PathBuf, io::Error> {
    let mut result = Err(io::ErrorKind::AlreadyExists.into());
    for name in names {
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        result = options.open(&path).map(|_| path);
        match &result {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            _ => break,
        }
    }
    result
}

fn open_tcp(
    parameters: &RendezvousParameters,
    settings: &RendezvousSettings,
) -> Result<OpenStore, RendezvousError> {
    let endpoint: Endpoint = parameters
        .endpoint()
        .parse()
        .map_err(ParametersError::from)?;
    let target = endpoint.with_default_port(DEFAULT_PORT);
    let is_given = parameters.get_as_bool("is_host")?;
    let lookup = || Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
    let is_host = match is_given {
        Some(is_host) => is_host,
        None => is_this_host(endpoint.host(), &SystemResolver::new(lookup())),
    };
    let host_patience = settings.read_timeout.min(settings.join_timeout);
    let failed = |error| RendezvousError::connection(&settings.run_id, error);
    let store = match is_given {
        Some(true) => serve(parameters, &target, host_patience).map_err(failed),
        None if is_host => serve(parameters, &target, host_patience).or_else(|error| {
            let may_serve = match &error {
                StoreError::Journal(_) => return Err(failed(error)),
                StoreError::Listen(error) => error.is_address_in_use(),
                _ => false,
            };
            log::debug!("cannot serve the rendezvous store, connecting to it instead: {error}");
            connect(parameters, &target, host_patience, may_serve)
        }),
        _ => connect(parameters, &target, settings.join_timeout, false),
    };
    let store = store?.with_cancel(&Cancel::NEVER);
    store.set_timeout(Some(settings.read_timeout));
    // Nodes that meet at a loopback address are on one machine.
    let is_one_host = settings.max_nodes == 1 || is_loopback_name(target.host());
    let store = Arc::new(store);
    let endpoint = HostPort::new(target.host(), store.port());
    let route = StoreRoute::new(endpoint.clone(), store.connection_ends());
    let hosted = store.server().is_some().then(|| Arc::clone(&store));
    let remote = route.remote.map(|remote| remote.ip());
    let own_host = own_host(parameters, is_one_host, remote).with_route(route, hosted.clone());
    // Rank 0 needs it, and looks it up while the other nodes join.
    own_host.look_up();
    Ok(OpenStore {
        own_host,
        address: Some(endpoint.into()),
        hosted,
        store,
        candidate: None,
    })
}

/// The own addresses of this node, which reaches the rendezvous' store at `remote`.
pub(crate) fn own_host(
    parameters: &RendezvousParameters,
    is_one_host: bool,
    remote: Option<IpAddr>,
) -> OwnHost {
    let given = parameters.local_addr().map(|text| {
        let of_interface = addresses_of_interface(text, remote);
        of_interface
            .first()
            .map_or_else(|| text.to_owned(), IpAddr::to_string)
    });
    OwnHost::new(given, is_one_host).with_warnings(parameters.start_warnings().clone())
}

/// Opens a store that is found in a directory. If it has no server, this process may serve it.
fn open_moving(
    parameters: &RendezvousParameters,
    directory: &StoreDirectory,
    settings: &RendezvousSettings,
) -> Result<OpenStore, RendezvousError> {
    if !parameters.shares_store()? || !parameters.has_relays() {
        return Err(ParametersError::StoreMoves.into());
    }
    let network = directory.network();
    let deadline = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
    let remote = resolve(network, deadline, parameters.cancel()).unwrap_or_default();
    let remote = remote.first().copied();
    let is_one_host = is_loopback_name(network.host());
    let own_host = own_host(parameters, is_one_host, remote.map(|remote| remote.ip()));
    let mut lookup = Arc::clone(directory.lookup());
    let mut candidate = None;
    if directory.candidates_max() > 0 {
        let towards = StoreRoute {
            local: remote.and_then(|remote| own_address_towards(remote).ok()),
            remote,
            ..StoreRoute::default()
        };
        let mut advertised = own_host.clone().with_route(towards, None).advertised(&[]);
        let credentials = parameters.credentials();
        if parameters.local_addr().is_none()
            && !is_one_host
            && credentials.is_some_and(Credentials::has_certificates)
        {
            // The directory has no place for the name that certificates have.
            own_host.name().clone_into(&mut advertised.host);
        }
        let started = Candidate::start(directory, advertised, parameters)?;
        lookup = started.observed(directory);
        candidate = Some(started);
    }
    let address = StoreAddress::from(lookup);
    let patience = settings.join_timeout;
    let deadline = Deadline::after(Instant::now(), patience);
    let open = |timeout: Duration| {
        TcpStore::open_at(&address, client_options(parameters).with_timeout(timeout))
    };
    let store = open(patience.min(FIRST_CONNECT_SLICE)).or_else(|error| {
        let left = deadline.remaining(Instant::now()).unwrap_or(Duration::MAX);
        if left.is_zero() || parameters.cancel().is_cancelled() {
            return Err(error);
        }
        log::warn!(
            "{}; retrying for up to {:.0} s",
            in_brief(&error),
            left.as_secs_f64(),
        );
        open(left)
    });
    let store = store.map_err(|error| RendezvousError::connection(&settings.run_id, error))?;
    let store = store.with_cancel(&Cancel::NEVER);
    store.set_timeout(Some(settings.read_timeout));
    let route = StoreRoute::new(None, store.connection_ends());
    Ok(OpenStore {
        store: Arc::new(store),
        own_host: own_host.with_route(route, None),
        address: Some(address),
        hosted: None,
        candidate,
    })
}

/// The options of a client, with the credentials.
pub(crate) fn client_options(parameters: &RendezvousParameters) -> TcpStoreOptions {
    let options = TcpStoreOptions::default().with_cancel(parameters.cancel().clone());
    match parameters.credentials() {
        Some(credentials) => options.with_credentials(credentials.clone()),
        None => options,
    }
}

fn serve(
    parameters: &RendezvousParameters,
    target: &HostPort,
    timeout: Duration,
) -> Result<TcpStore, StoreError> {
    let mut server_options = parameters.server_options();
    if parameters.shares_store().unwrap_or(false) {
        server_options = protected(server_options, parameters.credentials());
    }
    let options = client_options(parameters)
        .with_master(true)
        .with_multi_tenant(true)
        .with_listen_on(ListenOn::HostIfKnown)
        .with_listen_also_on(given_addresses(parameters.local_addr()))
        .with_server_options(server_options)
        .with_timeout(timeout);
    let store = TcpStore::open(target.host(), target.port(), options)?;
    log::debug!(
        "this process hosts the rendezvous store at {}:{}",
        target.host(),
        store.port(),
    );
    Ok(store)
}

/// Connects to a store whose server may start later, for at most `patience`. With `may_serve` it also tries to serve the store:
/// the port was in use on this machine, usually by a node that serves, but a connection or the server of an ended job may
/// have held it, and then every node would only connect.
fn connect(
    parameters: &RendezvousParameters,
    target: &HostPort,
    patience: Duration,
    may_serve: bool,
) -> Result<TcpStore, RendezvousError> {
    let deadline = Deadline::after(Instant::now(), patience);
    let credentials = parameters.credentials();
    let cancel = parameters.cancel();
    let mut watch = ListenerWatch::new(target, credentials, parameters.run_id(), cancel);
    let failed = |error| RendezvousError::connection(parameters.run_id(), error);
    let mut slice = FIRST_CONNECT_SLICE;
    let mut logged_at: Option<Instant> = None;
    loop {
        let left = deadline.remaining(Instant::now()).unwrap_or(Duration::MAX);
        let options = client_options(parameters).with_timeout(left.min(slice));
        match TcpStore::open(target.host(), target.port(), options) {
            Ok(store) => return Ok(store),
            Err(error @ StoreError::Connect { .. }) if left > slice => {
                let mut serving = "";
                if may_serve {
                    match serve(parameters, target, left - slice) {
                        Ok(store) => return Ok(store),
                        Err(error @ StoreError::Journal(_)) => return Err(failed(error)),
                        Err(error) => {
                            log::debug!("this node cannot serve the store: {error}");
                            serving = match &error {
                                StoreError::Listen(error) if error.is_address_in_use() => {
                                    ", and its port is taken"
                                }
                                _ => ", nor serve it",
                            };
                        }
                    }
                }
                if logged_at.is_none_or(|at| at.elapsed() >= CONNECT_LOG_INTERVAL) {
                    logged_at = Some(Instant::now());
                    let left = (left - slice).as_secs_f64();
                    let brief = in_brief(&error);
                    match is_unknown_host(&error) {
                        true => log::warn!(
                            "waiting for the host name {}, which has no address yet; retrying for up to {left:.0} s",
                            target.host(),
                        ),
                        false => log::warn!("{brief}{serving}; retrying for up to {left:.0} s"),
                    }
                }
                watch.on_failure(deadline);
                slice = CONNECT_SLICE;
            }
            Err(error @ (StoreError::Connect { .. } | StoreError::Protocol { .. })) => {
                return Err(watch.error(failed(error)));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Whether the last failure is a failed name lookup, which is retried like every other failure.
fn is_unknown_host(error: &StoreError) -> bool {
    match error {
        StoreError::Connect { source, .. } => {
            let last = source.failures().last();
            last.is_some_and(|failure| failure.stage() == DialStage::Lookup)
        }
        _ => false,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_temporary_file_is_private_and_existing_files_are_not_used() {
        let folder = std::env::temp_dir().join(format!("private-file-{:016x}", fastrand::u64(..)));
        fs::create_dir(&folder).unwrap();
        let target = folder.join("target");
        symlink(&target, folder.join("link")).unwrap();
        fs::write(folder.join("file"), "planted").unwrap();
        fs::set_permissions(folder.join("file"), fs::Permissions::from_mode(0o666)).unwrap();

        let names = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        let create = |list: &[&str]| create_private_file(&folder, names(list).into_iter());
        let created = create(&["link", "file", "new", "other"]).unwrap();
        let refused = create(&["link", "file", "new"]).unwrap_err();

        assert_eq!(created, folder.join("new"));
        let mode = fs::metadata(&created).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert!(!target.exists() && !folder.join("other").exists());
        assert_eq!(fs::read(folder.join("file")).unwrap(), b"planted");
        fs::remove_dir_all(folder).unwrap();
    }
}
