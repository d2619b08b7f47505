//! Agrees on the address of the store that the workers of a round use.
//!
//! PyTorch's agents publish it only in the round in which they first serve it: a node that joins later
//! never finds it, and a late node with rank 0 splits the world (docs/spec/rendezvous.md, section 12). Here it
//! is published in every round and stays the same while its server runs.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, ConnectOptions, Deadline, HostPort, ListenOptions, printable, sleep};
use c10d_store::{
    Credentials, ListenOn, ServerOptions, Store, StoreAddress, StoreError, StoreExt, TcpStore,
    TcpStoreOptions, in_brief,
};

use crate::engine::own_address::Advertised;
use crate::shell::board::{BoardError, OWNER_KEY, RoundBoard, Wait, is_kept, state_key};
use crate::shell::handler::{BootstrapInfo, RendezvousInfo};
use crate::shell::own_host::OwnHost;
use crate::values::error::RendezvousError;
use crate::values::node::NodeId;
use crate::values::port_range::PortRange;
use crate::values::start_warnings::WarningKind;
use crate::values::store_access::ServerHook;

const ADDR_KEY: &str = "MASTER_ADDR";
const PORT_KEY: &str = "MASTER_PORT";

/// Ours: the host name of the node that has published the address.
const NAME_KEY: &str = "c10d/master_name";

/// The longest host name (RFC 1035).
const NAME_BYTES_MAX: usize = 255;

/// Ours: how many nodes have offered to clear the workers' store.
const CLEARING_KEY: &str = "c10d/clearing";

/// A PyTorch node with rank 0 that does publish may notice the complete round a second late, and then
/// starts its server.
const GRACE: Duration = Duration::from_secs(3);

/// How much longer a node waits for rank 0 if the server of the earlier address does not answer, because a rank 0 of this
/// project then replaces it: as long as that may take, which is less than the 60 s of PyTorch's newcomers.
const REPLACE_GRACE: Duration = PROBE_TIMEOUT.saturating_add(SERVE_TIMEOUT);

/// The pause before another wait, when a busy server accepts no second connection.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How many earlier rounds are searched for an address.
const EARLIER_ROUNDS_MAX: i64 = 64;

/// How long the server of an earlier round may take to answer before another address is chosen.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The published port of a store that moves, while it has no server.
const UNKNOWN_PORT: u16 = 1;

/// The limit for starting our own server.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest address that is read from the store.
const ADDR_BYTES_MAX: usize = 1024;

/// The most characters that an error shows of a value.
const VALUE_CHARS_MAX: usize = 100;

/// The most characters that the log shows of the name of this host.
const NAME_CHARS_MAX: usize = 60;

/// The facts about a complete round that the choice depends on.
#[derive(Debug)]
pub(crate) struct Round<'r> {
    /// The rendezvous' store, without a prefix.
    pub(crate) store: &'r Arc<dyn Store>,
    pub(crate) run_id: &'r str,
    pub(crate) number: i64,
    pub(crate) rank: usize,
    /// The node with rank 0.
    pub(crate) first: &'r NodeId,
    /// Whether the round has exactly the nodes of the last round that this node joined. False if unknown,
    /// which costs a wait for the address.
    pub(crate) is_same_world: bool,
    /// Whether the round was running when this node entered it: its address is published.
    pub(crate) has_entered: bool,
    /// The nodes in the order of their ranks; empty if unknown.
    pub(crate) nodes: &'r [NodeId],
    pub(crate) own_host: &'r OwnHost,
    /// Called when this node starts to serve.
    pub(crate) server_hook: Option<&'r ServerHook>,
    /// The ports for the workers' store; `None` for a port that the system chooses.
    pub(crate) ports: Option<PortRange>,
}

/// The reason why no address was found.
#[derive(Debug)]
pub(crate) enum NotFound {
    Interrupted,
    /// The other nodes published no address in time.
    Missing,
    Failed(RendezvousError),
}

impl From<RendezvousError> for NotFound {
    fn from(error: RendezvousError) -> Self {
        Self::Failed(error)
    }
}

/// A node's records that last from round to round.
#[derive(Debug, Default)]
pub(crate) struct Bootstrap {
    /// The server of this node, started when it is first needed.
    own: Option<Arc<TcpStore>>,
    protection: Protection,
    /// The rendezvous' store, if it is also the workers'.
    shared: Option<StoreAddress>,
    /// The last published address of this node's server.
    own_published: Option<HostPort>,
    /// The address in the last round that had one.
    master: Option<Master>,
    /// The node with rank 0 of the last round; `None` if that round had no address.
    first: Option<NodeId>,
}

/// The place of the workers' store of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Master {
    address: HostPort,
    /// The name of the node that has published the address; `None` from nodes that publish no name.
    name: Option<String>,
}

/// The clients that the workers' stores of a job serve.
#[derive(Debug, Clone, Default)]
pub(crate) enum Protection {
    /// Every client.
    #[default]
    Open,
    /// Processes of the user that runs the server on its machine, and clients with the credentials. The job has one
    /// node, whose processes need none.
    OwnUser(Credentials),
    /// Processes of the user that runs the server on its machine, and clients with the credentials. Other nodes use the
    /// credentials to reach the server.
    Job(Credentials),
}

impl Protection {
    /// The credentials that the server requires from its clients.
    const fn of_server(&self) -> Option<&Credentials> {
        match self {
            Self::Open => None,
            Self::OwnUser(credentials) | Self::Job(credentials) => Some(credentials),
        }
    }

    /// The credentials that nodes use to connect.
    const fn of_clients(&self) -> Option<&Credentials> {
        match self {
            Self::Open | Self::OwnUser(_) => None,
            Self::Job(credentials) => Some(credentials),
        }
    }
}

impl Round<'_> {
    /// The board of a round.
    pub(crate) fn board(&self, number: i64) -> RoundBoard {
        RoundBoard::of(self.store, self.run_id, number)
    }

    /// Whether this node decides where the workers' store is.
    const fn is_chosen_here(&self) -> bool {
        self.rank == 0 && !self.has_entered
    }

    fn failed(&self, error: StoreError) -> RendezvousError {
        RendezvousError::connection(self.run_id, error)
    }

    /// The published address of a round, if any.
    fn published(&self, number: i64) -> Result<Option<Master>, RendezvousError> {
        let board = self.board(number);
        let read = |name| board.read(name).map_err(|error| self.failed(error));
        let Some(port) = read(PORT_KEY)? else {
            return Ok(None);
        };
        let Some(addr) = read(ADDR_KEY)? else {
            return Ok(None);
        };
        self.master_of(number, &addr, &port).map(Some)
    }

    /// The store at a published address, with its published name.
    fn master_of(&self, number: i64, addr: &[u8], port: &[u8]) -> Result<Master, RendezvousError> {
        let address = self.address_of(number, addr, port)?;
        let name = self.board(number).read(NAME_KEY);
        let name = name.map_err(|error| self.failed(error))?;
        Ok(Master {
            address,
            name: name.and_then(host_name),
        })
    }

    fn address_of(
        &self,
        number: i64,
        addr: &[u8],
        port: &[u8],
    ) -> Result<HostPort, RendezvousError> {
        let text = |value: &[u8]| {
            String::from_utf8_lossy(&value[..value.len().min(ADDR_BYTES_MAX)]).into_owned()
        };
        match text(port).parse::<u16>() {
            Ok(port) if port > 0 => Ok(HostPort::new(text(addr), port)),
            _ => Err(RendezvousError::BadBootstrap {
                store: self.store.label(),
                key: self.board(number).store().full_key(PORT_KEY),
                value: printable(port, VALUE_CHARS_MAX).to_string(),
            }),
        }
    }

    fn publish(&self, master: &Master) -> Result<(), RendezvousError> {
        let published = self.board(self.number).put_all(&values_of(master));
        published.map_err(|error| self.failed(error))
    }

    /// Publishes for a rank 0 that never will. Does not replace a published address.
    fn publish_if_missing(&self, master: &Master) -> Result<(), RendezvousError> {
        let board = self.board(self.number);
        let mut values = values_of(master).into_iter();
        let published = values.try_for_each(|(name, value)| board.put_if_missing(&name, value));
        published.map_err(|error| self.failed(error))
    }

    /// The address of the newest earlier round that has one.
    fn published_earlier(&self) -> Result<Option<Master>, RendezvousError> {
        let oldest = self.number.saturating_sub(EARLIER_ROUNDS_MAX).max(0);
        for number in (oldest..self.number).rev() {
            if let Some(master) = self.published(number)? {
                return Ok(Some(master));
            }
        }
        Ok(None)
    }
}

impl Bootstrap {
    /// Creates a bootstrap. `shared` is the address of the rendezvous' store, if the workers are to
    /// use the same store.
    pub(crate) fn new(protection: Protection, shared: Option<StoreAddress>) -> Self {
        Self {
            protection,
            shared,
            ..Self::default()
        }
    }

    /// Returns the workers' store of a round, served by an agent. Blocks for at most `timeout`, plus 30 s to start a
    /// server; `cancel` interrupts the waits for rank 0.
    ///
    /// Other nodes than rank 0 reuse the address of the last round at once if the world is the same, since a PyTorch
    /// node with rank 0 would not publish it again; but they do not reuse the address of a store that moves, because
    /// such a job has no PyTorch nodes. A world that has only lost nodes is not the same: the server may be lost with
    /// them.
    pub(crate) fn settle(
        &mut self,
        round: &Round<'_>,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<BootstrapInfo, NotFound> {
        let last_first = self.first.take();
        let master = if round.is_chosen_here() {
            let master = self.choose(round)?;
            round.publish(&master)?;
            master
        } else {
            let is_fixed = !matches!(self.shared, Some(StoreAddress::LookedUp(_)));
            let is_same_world = round.is_same_world && last_first.as_ref() == Some(round.first);
            let is_unchanged = is_fixed && is_same_world;
            match &self.master {
                Some(master) if is_unchanged => master.clone(),
                _ => self.find(round, timeout, cancel)?,
            }
        };
        self.master = Some(master.clone());
        self.first = Some(round.first.clone());
        let is_own = self.own_published.as_ref() == Some(&master.address);
        let own = self.own.as_ref().filter(|_| is_own);
        let credentials = self.credentials_for(&master, round);
        let info = BootstrapInfo {
            master_name: master.name,
            is_rendezvous_store: self.shared.is_some(),
            ..BootstrapInfo::new(master.address, true, true)
        };
        let mut info = info
            .with_credentials(credentials)
            .with_state_key(state_key(round.run_id));
        Ok(match (own, &self.shared) {
            (_, Some(followed @ StoreAddress::LookedUp(_))) => {
                let info = info.with_followed(followed.clone());
                info.with_at_hand(round.store)
            }
            (Some(own), _) => {
                if !listens_at(own, info.master.host())
                    && let Some(server) = own.server()
                {
                    // The published address is a gateway's, and a host often does not reach itself there.
                    let here = server.local_addr();
                    info.master = HostPort::new(here.ip().to_string(), here.port());
                }
                let own: Arc<dyn Store> = Arc::<TcpStore>::clone(own);
                info.with_at_hand(&own)
            }
            (None, _) => info,
        })
    }

    /// The credentials of clients of the store, with the names that its certificate may have.
    fn credentials_for(&self, master: &Master, round: &Round<'_>) -> Option<Credentials> {
        let shared = match &self.shared {
            Some(StoreAddress::At(endpoint)) => Some(endpoint.host()),
            _ => None,
        };
        let own = round.own_host.endpoint().filter(|_| shared.is_some());
        let names = [master.name.as_deref(), shared, own.map(HostPort::host)];
        let known = self.protection.of_clients().cloned()?;
        let names = names.into_iter().flatten();
        Some(names.fold(known, Credentials::with_server_name))
    }

    /// Returns a new address for each round, where the worker with rank 0 will serve: PyTorch's behaviour
    /// when agents share no store.
    pub(crate) fn settle_unshared(
        round: &Round<'_>,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<BootstrapInfo, NotFound> {
        let master = if round.is_chosen_here() {
            let port = free_port(round)?;
            let advertised = round.own_host.advertised(round.nodes);
            let master = Master {
                address: HostPort::new(advertised.host.as_str(), port),
                name: Some(round.own_host.name_for_certificates().to_owned()),
            };
            report(&advertised, round.own_host, port);
            round.publish(&master)?;
            master
        } else {
            let deadline = Deadline::after(Instant::now(), timeout);
            await_published(round, deadline, cancel)?.ok_or(NotFound::Missing)?
        };
        Ok(BootstrapInfo {
            master_name: master.name,
            ..BootstrapInfo::new(master.address, false, false)
        })
    }

    /// Returns rank 0's choice. This is the rendezvous' store if it is shared. Otherwise it is the previous address if
    /// its server still answers, because members may have cached it; if not, our own address.
    fn choose(&mut self, round: &Round<'_>) -> Result<Master, RendezvousError> {
        let named = |address| Master {
            address,
            name: Some(round.own_host.name_for_certificates().to_owned()),
        };
        match &self.shared {
            None => {}
            Some(StoreAddress::At(shared)) => {
                let address = round.own_host.reached(shared, round.nodes);
                return Ok(named(address));
            }
            // The address is only for messages, because all nodes follow the store.
            Some(followed @ StoreAddress::LookedUp(_)) => {
                let deadline = Deadline::after(Instant::now(), PROBE_TIMEOUT);
                let current = followed.current(deadline, &Cancel::NEVER);
                let unknown = |error| {
                    log::debug!("cannot look up the workers' store: {error}");
                    HostPort::new(followed.to_string(), UNKNOWN_PORT)
                };
                return Ok(Master {
                    address: current.unwrap_or_else(unknown),
                    name: None,
                });
            }
        }
        let before = match &self.master {
            None if round.number > 0 => round.published_earlier()?,
            master => master.clone(),
        };
        if let Some(before) = before
            && self.own_published.as_ref() != Some(&before.address)
        {
            match self.probe(&before, round, &Cancel::NEVER) {
                Ok(()) => return Ok(before),
                Err(error) => log::info!("starting a new workers' store: {}", in_brief(&error)),
            }
        }
        let advertised = round.own_host.advertised(round.nodes);
        let own = self.own.take();
        let own = match own.filter(|store| listens_at(store, &advertised.host)) {
            Some(store) => store,
            None => {
                let (run_id, own_host) = (round.run_id, round.own_host);
                let store = serve(run_id, own_host, &advertised, &self.protection, round.ports)?;
                if let (Some(hook), Some(server)) = (round.server_hook, store.server()) {
                    hook.call(server);
                }
                Arc::new(store)
            }
        };
        if round.nodes.len() != 1 {
            // Other nodes tell it from the store of another job at the same port.
            let marked = own.set(OWNER_KEY, round.run_id);
            marked.map_err(|error| round.failed(error))?;
        }
        let master = named(HostPort::new(advertised.host.as_str(), own.port()));
        self.own = Some(own);
        if self.own_published.replace(master.address.clone()).as_ref() != Some(&master.address) {
            report(&advertised, round.own_host, master.address.port());
        }
        Ok(master)
    }

    /// Returns an error if the server of an earlier round no longer answers.
    fn probe(&self, before: &Master, round: &Round<'_>, cancel: &Cancel) -> Result<(), StoreError> {
        // The server listened a moment ago, so a refusal means that it has exited.
        let credentials = self.credentials_for(before, round);
        let options = client_options(credentials.as_ref(), PROBE_TIMEOUT)
            .with_connect_options(ConnectOptions::default().with_rounds_max(1))
            .with_cancel(cancel.clone());
        TcpStore::open(before.address.host(), before.address.port(), options).map(drop)
    }

    /// Returns the address that rank 0 publishes, or the address of an earlier round if rank 0
    /// publishes none. All nodes use the address that is published first, so a node does not publish the address of a lost
    /// server while rank 0 may replace that server.
    fn find(
        &self,
        round: &Round<'_>,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<Master, NotFound> {
        let deadline = Deadline::after(Instant::now(), timeout);
        let published_within = |grace| {
            let grace = Deadline::after(Instant::now(), grace).min(deadline);
            match await_published(round, grace, cancel) {
                Err(error @ NotFound::Interrupted) => Err(error),
                // A lasting failure also makes the calls below fail.
                found => Ok(found.unwrap_or_default()),
            }
        };
        if let Some(master) = published_within(GRACE)? {
            return Ok(master);
        }
        let before = match &self.master {
            None => round.published_earlier()?,
            master => master.clone(),
        };
        if let Some(before) = before {
            let is_own = self.own_published.as_ref() == Some(&before.address);
            if !(is_own || self.shared.is_some())
                && self.probe(&before, round, cancel).is_err()
                && let Some(master) = published_within(REPLACE_GRACE)?
            {
                return Ok(master);
            }
            log::info!(
                "rank 0 has not published the workers' store of round {}: using {} of an earlier round",
                round.number,
                before.address,
            );
            round.publish_if_missing(&before)?;
        }
        await_published(round, deadline, cancel)?.ok_or(NotFound::Missing)
    }
}

/// Removes the workers' keys from their store, which would mislead workers after a restart, if no other node of the round
/// does. In the store of the rendezvous, its keys stay. Each node would read the keys of the workers of all nodes,
/// so the cost would grow with the square of their number.
///
/// Returns whether this node has removed them, or has tried to. Does nothing if the store also holds other data. Call
/// it when all workers of the last round have ended and none of the next can have started: before this node takes part
/// in the exchange of ranks. A failure of the workers' store is logged only, because PyTorch also leaves the keys.
/// Blocks for at most 2 s per request: one for many keys with a common first part, on a server of this project, and otherwise one
/// for each key. Stops at the first request that fails.
///
/// # Errors
/// [`StoreError`] when the round's store fails.
pub fn clear_workers_store(round: &RendezvousInfo) -> Result<bool, StoreError> {
    let bootstrap = &round.bootstrap;
    // This is not always the node with rank 0, because that may be a node of PyTorch.
    if !bootstrap.is_workers_own || !round.board().is_first(CLEARING_KEY)? {
        return Ok(false);
    }
    let cleared = || -> Result<usize, StoreError> {
        let credentials = bootstrap.credentials.as_ref();
        // Each connection leaves a record in its server, and there are many rounds.
        let store: Arc<dyn Store> = match bootstrap.at_hand.store() {
            Some(store) => store,
            None => Arc::new(open(&bootstrap.master, credentials, PROBE_TIMEOUT)?),
        };
        let keys = store.list_keys()?;
        let is_shared = bootstrap
            .state_key
            .as_ref()
            .is_some_and(|state| keys.contains(state));
        let is_old = |key: &String| *key != OWNER_KEY && !(is_shared && is_kept(key));
        let (old, kept): (Vec<String>, Vec<String>) = keys.into_iter().partition(is_old);
        delete_all(&*store, &old, &kept)?;
        Ok(old.len())
    };
    match cleared() {
        Ok(0) => {}
        Ok(count) => log::debug!("removed {count} keys from the workers' store"),
        Err(error) => log::debug!(
            "cannot remove all keys from the workers' store {}: {error}",
            bootstrap.master
        ),
    }
    Ok(true)
}

/// As many keys with a common first part are deleted by one request, if they are also this part of the store's keys, because the
/// server visits all keys for each such request.
const DELETED_TOGETHER_MIN: usize = 8;

const DELETED_TOGETHER_SHARE: usize = 64;

/// Deletes the keys `old`, and none of the keys `kept`.
fn delete_all(store: &dyn Store, old: &[String], kept: &[String]) -> Result<(), StoreError> {
    let mut parts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for key in old {
        parts.entry(first_part(key)).or_default().push(key);
    }
    let all = old.len() + kept.len();
    for (part, keys) in parts {
        let are_many = keys.len() >= DELETED_TOGETHER_MIN.max(all.div_ceil(DELETED_TOGETHER_SHARE));
        if are_many && !kept.iter().any(|key| key.starts_with(part)) {
            match store.delete_prefix(part, Duration::ZERO) {
                Err(StoreError::Unsupported { .. }) => {}
                result => {
                    result?;
                    continue;
                }
            }
        }
        for key in keys {
            store.delete_key(key)?;
        }
    }
    Ok(())
}

/// A key up to its first slash that is not its first character.
fn first_part(key: &str) -> &str {
    let end = key.match_indices('/').find(|(at, _)| *at > 0);
    &key[..end.map_or(key.len(), |(at, _)| at + 1)]
}

/// Starts a store for workers where this node is advertised. Blocks for at most 30 s.
pub(crate) fn serve(
    run_id: &str,
    own_host: &OwnHost,
    advertised: &Advertised,
    protection: &Protection,
    ports: Option<PortRange>,
) -> Result<TcpStore, RendezvousError> {
    // This process reaches its own server by an address.
    let credentials = protection.of_clients().cloned();
    let name = own_host.name_for_certificates();
    let credentials = credentials.map(|known| known.with_server_name(name));
    let open = |port| {
        let server_options = ServerOptions::default().with_groups(c10d_membership::groups);
        let server_options = protected(server_options, protection.of_server());
        let options = client_options(credentials.as_ref(), SERVE_TIMEOUT)
            .with_master(true)
            // A given port is not shared, because the rendezvous' store of this process may have it.
            .with_multi_tenant(port == 0)
            .with_server_options(server_options)
            .with_listen_on(ListenOn::HostIfKnown)
            .with_listen_also_on(advertised.also.clone());
        TcpStore::open(&advertised.host, port, options)
    };
    match ports {
        None => open(0).map_err(|error| RendezvousError::connection(run_id, error)),
        Some(ports) => first_free(ports, open),
    }
}

/// Opens the first of these ports that no other process uses.
fn first_free<T>(
    ports: PortRange,
    open: impl Fn(u16) -> Result<T, StoreError>,
) -> Result<T, RendezvousError> {
    let failed = |error| RendezvousError::WorkersPort {
        ports,
        source: Box::new(error),
    };
    let (mut port, last) = ports.ports().into_inner();
    loop {
        match open(port) {
            Err(StoreError::Listen(error)) if error.is_address_in_use() && port < last => {
                log::debug!("port {port} of --workers-port is in use");
                port += 1;
            }
            opened => return opened.map_err(failed),
        }
    }
}

/// Reports that the name of this host is not what other nodes get.
fn report(advertised: &Advertised, own_host: &OwnHost, port: u16) {
    if let Some(reason) = &advertised.instead_of_name {
        let address = HostPort::new(advertised.host.as_str(), port);
        let name = printable(own_host.name(), NAME_CHARS_MAX);
        let text = format!("the workers' store is at {address}: this host's name {name} {reason}");
        own_host.warnings().add(WarningKind::Route, text);
    }
}

/// Whether the server may be published with this host.
fn listens_at(store: &TcpStore, host: &str) -> bool {
    let Ok(ip) = host.parse::<IpAddr>() else {
        return true;
    };
    let addresses = store.server().map_or(&[][..], |it| it.local_addrs());
    let mut ips = addresses.iter().map(SocketAddr::ip);
    ips.any(|own| own == ip || own.is_unspecified())
}

/// The values of a node with rank 0, in the order in which they are written.
fn values_of(master: &Master) -> Vec<(String, String)> {
    let name = master.name.iter().map(|name| (NAME_KEY, name.clone()));
    let address = [
        (ADDR_KEY, master.address.host().to_owned()),
        (PORT_KEY, master.address.port().to_string()),
    ];
    let values = name.chain(address);
    values.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A published host name; `None` for other bytes.
fn host_name(value: Vec<u8>) -> Option<String> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&value.len()) && value.is_ascii();
    let is_name = is_name && value.iter().all(u8::is_ascii_graphic);
    String::from_utf8(value).ok().filter(|_| is_name)
}

/// Returns the options of a server for workers. With credentials, it serves only clients that have the
/// credentials, and processes on the same machine of the user that runs the server.
pub(crate) fn protected(
    options: ServerOptions,
    credentials: Option<&Credentials>,
) -> ServerOptions {
    match credentials {
        Some(credentials) => options
            .with_credentials(credentials.clone())
            .with_plain_from_same_user(true),
        None => options,
    }
}

fn open(
    target: &HostPort,
    credentials: Option<&Credentials>,
    timeout: Duration,
) -> Result<TcpStore, StoreError> {
    let options = client_options(credentials, timeout);
    TcpStore::open(target.host(), target.port(), options)
}

fn client_options(credentials: Option<&Credentials>, timeout: Duration) -> TcpStoreOptions {
    let options = TcpStoreOptions::default().with_timeout(timeout);
    match credentials {
        Some(credentials) => options.with_credentials(credentials.clone()),
        None => options,
    }
}

fn await_published(
    round: &Round<'_>,
    deadline: Deadline,
    cancel: &Cancel,
) -> Result<Option<Master>, NotFound> {
    let board = round.board(round.number).with_cancel(cancel);
    loop {
        let left = deadline.remaining(Instant::now());
        let error = match board.await_all(&[ADDR_KEY, PORT_KEY], "address", Wait::new(left)) {
            Ok(values) => {
                let master = round.master_of(round.number, &values[0], &values[1])?;
                return Ok(Some(master));
            }
            Err(BoardError::Interrupted) => return Err(NotFound::Interrupted),
            Err(BoardError::Store(error)) => error,
            Err(_) => return Ok(None),
        };
        match error {
            // Most likely the server is busy.
            StoreError::Connect { .. } if left.is_none_or(|left| left > RETRY_PAUSE) => {
                sleep(RETRY_PAUSE, [cancel]).map_err(|_| NotFound::Interrupted)?;
            }
            error => return Err(round.failed(error).into()),
        }
    }
}

/// Finds a port that is free on all interfaces at this moment.
fn free_port(round: &Round<'_>) -> Result<u16, RendezvousError> {
    let listen = |port| c10d_socket::listen(&ListenOptions::default().with_port(port));
    let listener = match round.ports {
        None => listen(0).map_err(|error| round.failed(error.into()))?,
        Some(ports) => first_free(ports, |port| Ok(listen(port)?))?,
    };
    let address = listener
        .first()
        .and_then(|listener| listener.local_addr().ok());
    Ok(address.map_or(0, |address| address.port()))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use c10d_store::HashStore;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 7, 0)
    }

    static OWN_HOST: LazyLock<OwnHost> =
        LazyLock::new(|| OwnHost::new(Some("127.0.0.1".to_owned()), false));

    fn at(host: &str, port: u16) -> Master {
        Master {
            address: HostPort::new(host, port),
            name: None,
        }
    }

    fn round<'r>(store: &'r Arc<dyn Store>, number: i64, first: &'r NodeId) -> Round<'r> {
        Round {
            store,
            run_id: "job",
            number,
            rank: 1,
            first,
            is_same_world: false,
            has_entered: false,
            nodes: &[],
            own_host: &OWN_HOST,
            server_hook: None,
            ports: None,
        }
    }

    fn settled(bootstrap: &mut Bootstrap, round: &Round<'_>) -> HostPort {
        let settled = bootstrap.settle(round, LONG, &Cancel::NEVER);
        settled.expect("an address").master
    }

    /// docs/spec/rendezvous.md, BOOT 3.
    #[test]
    fn a_node_reuses_the_address_only_in_the_same_world() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let (a, b) = (node("a"), node("b"));
        let (old, new) = (at("old", 1), at("new", 2));
        let mut bootstrap = Bootstrap::default();
        let in_round = |number, first| round(&store, number, first);
        in_round(0, &b).publish(&old).expect("to publish");
        assert_eq!(settled(&mut bootstrap, &in_round(0, &b)), old.address);

        // The round has no published address.
        let same = Round {
            is_same_world: true,
            has_entered: false,
            ..in_round(1, &b)
        };
        assert_eq!(settled(&mut bootstrap, &same), old.address);
        assert!(
            !store
                .check(&["torch.rendezvous.job.1/MASTER_PORT"])
                .expect("an answer")
        );

        in_round(2, &b).publish(&new).expect("to publish");
        assert_eq!(settled(&mut bootstrap, &in_round(2, &b)), new.address);
        let other_first = Round {
            is_same_world: true,
            has_entered: false,
            ..in_round(3, &a)
        };
        other_first.publish(&old).expect("to publish");
        assert_eq!(settled(&mut bootstrap, &other_first), old.address);
    }

    #[test]
    fn a_round_without_an_address_is_not_one_to_reuse() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let b = node("b");
        let (old, new) = (at("old", 1), at("new", 2));
        let mut bootstrap = Bootstrap::default();
        let first = round(&store, 0, &b);
        first.publish(&old).expect("to publish");
        assert_eq!(settled(&mut bootstrap, &first), old.address);
        let cancel = Cancel::new();
        cancel.cancel();
        let interrupted = bootstrap.settle(&round(&store, 1, &b), LONG, &cancel);
        assert!(
            matches!(interrupted, Err(NotFound::Interrupted)),
            "{interrupted:?}"
        );
        let same = Round {
            is_same_world: true,
            has_entered: false,
            ..round(&store, 2, &b)
        };
        same.publish(&new).expect("to publish");
        assert_eq!(settled(&mut bootstrap, &same), new.address);
    }

    /// docs/spec/rendezvous.md, BOOT 4. Rank 0 is a node of PyTorch, which publishes in its first round only.
    #[test]
    fn a_node_that_knows_the_address_publishes_it_for_a_rank_0_that_does_not() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let (torch, b) = (node("torch"), node("b"));
        let server = TcpStore::open("127.0.0.1", 0, TcpStoreOptions::default().with_master(true));
        let server = server.expect("a server");
        let master = at("127.0.0.1", server.port());
        round(&store, 0, &torch)
            .publish(&master)
            .expect("to publish");
        let mut member = Bootstrap::default();
        assert_eq!(
            settled(&mut member, &round(&store, 0, &torch)),
            master.address
        );
        std::thread::scope(|scope| {
            // One node has it from its last round, and one node finds it in the store.
            scope.spawn(|| {
                let round = round(&store, 1, &b);
                assert_eq!(settled(&mut member, &round), master.address);
            });
            scope.spawn(|| {
                let round = round(&store, 1, &b);
                assert_eq!(settled(&mut Bootstrap::default(), &round), master.address);
            });
        });
        let found = store
            .get("torch.rendezvous.job.1/MASTER_ADDR")
            .expect("an address");
        assert_eq!(found, b"127.0.0.1");
    }

    /// docs/spec/rendezvous.md, BOOT 4. Its host has lost power, so that rank 0 notices late.
    #[test]
    fn the_address_of_a_lost_server_is_not_published_while_rank_0_replaces_it() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let (a, b) = (node("a"), node("b"));
        // A port without a server.
        let (lost, new) = (at("127.0.0.1", 1), at("new", 2));
        round(&store, 0, &b).publish(&lost).expect("to publish");
        std::thread::scope(|scope| {
            let found = scope.spawn(|| settled(&mut Bootstrap::default(), &round(&store, 1, &a)));
            std::thread::sleep(GRACE + Duration::from_secs(1));
            round(&store, 1, &a).publish(&new).expect("to publish");
            assert_eq!(found.join().expect("an address"), new.address);
        });
    }

    /// docs/spec/rendezvous.md, BOOT 6. The file of a store has its writes in order.
    #[test]
    fn the_host_is_written_before_the_port() {
        let path = std::env::temp_dir().join(format!("bootstrap-{}", std::process::id()));
        let store: Arc<dyn Store> =
            Arc::new(c10d_store::FileStore::open(&path, None).expect("a file"));
        let a = node("a");
        let master = at("host", 1);
        round(&store, 0, &a).publish(&master).expect("to publish");
        round(&store, 1, &a)
            .publish_if_missing(&master)
            .expect("to publish");
        let written = std::fs::read(&path).expect("its writes");
        let place = |key: &str| {
            written
                .windows(key.len())
                .position(|it| it == key.as_bytes())
        };
        for number in 0..2 {
            let places = [ADDR_KEY, PORT_KEY]
                .map(|key| place(&format!("torch.rendezvous.job.{number}/{key}")));
            assert!(places[0].is_some() && places[0] < places[1], "{places:?}");
        }
        let _ = std::fs::remove_file(path);
    }

    /// docs/spec/rendezvous.md, BOOT 1 and 2.
    #[test]
    fn rank_0_publishes_the_address_that_it_knows_while_its_server_answers() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let (a, b) = (node("a"), node("b"));
        let first_of = |number, first| Round {
            rank: 0,
            ..round(&store, number, first)
        };
        let mut of_b = Bootstrap::default();
        let served = settled(&mut of_b, &first_of(0, &b));
        // A newcomer with rank 0 finds it in the store.
        let mut of_a = Bootstrap::default();
        assert_eq!(settled(&mut of_a, &first_of(1, &a)), served);
        assert_eq!(settled(&mut of_b, &round(&store, 1, &a)), served);

        let mut of_c = Bootstrap::default();
        assert_eq!(settled(&mut of_c, &round(&store, 1, &a)), served);
        drop(of_b);
        // Node b and its server are lost. The remaining nodes change the address together.
        let moved = settled(&mut of_a, &first_of(2, &a));
        assert_ne!(moved, served);
        assert_eq!(settled(&mut of_c, &round(&store, 2, &a)), moved);
    }

    #[test]
    fn keys_are_deleted_together_only_if_none_of_them_is_kept() {
        let options = TcpStoreOptions::default().with_master(true);
        let server = TcpStore::open("127.0.0.1", 0, options).unwrap();
        // The second one has no request for several keys.
        for store in [&server as &dyn Store, &HashStore::new()] {
            let many = ["group/", "/devices/", "shared/"].into_iter();
            let many = many.flat_map(|part| (0..20).map(move |number| format!("{part}{number}/x")));
            let few = ["alone", "few/1", "few/2", "groups"].map(str::to_owned);
            let old: Vec<String> = many.chain(few).collect();
            let kept = ["shared/kept", "grouped"].map(str::to_owned);
            for key in old.iter().chain(&kept) {
                store.set(key, b"1").unwrap();
            }
            delete_all(store, &old, &kept).unwrap();
            let mut left = store.list_keys().unwrap();
            left.sort_unstable();
            assert_eq!(left, ["grouped", "shared/kept"]);
        }
    }

    /// docs/spec/rendezvous.md, BOOT 5.
    #[test]
    fn the_first_node_of_each_round_clears_the_workers_store() {
        let options = TcpStoreOptions::default().with_master(true);
        let workers = TcpStore::open("127.0.0.1", 0, options).unwrap();
        let round = |number, is_workers_own| {
            let master = HostPort::new("127.0.0.1", workers.port());
            let bootstrap = BootstrapInfo::new(master, true, is_workers_own);
            RendezvousInfo::new(number, Arc::new(HashStore::new()), 1, 2, bootstrap)
        };
        for number in 0..2 {
            let round = round(number, true);
            workers.set("left by a worker", b"1").unwrap();
            clear_workers_store(&round).unwrap();
            assert!(workers.list_keys().unwrap().is_empty());
            workers.set("of a worker of this round", b"1").unwrap();
            clear_workers_store(&round).unwrap();
            assert_eq!(workers.list_keys().unwrap(), ["of a worker of this round"]);
        }
        // The store of the rendezvous itself, which a static rendezvous has.
        let shared = round(0, false);
        clear_workers_store(&shared).unwrap();
        assert_eq!(workers.list_keys().unwrap().len(), 1);
        assert_eq!(shared.store.num_keys().unwrap(), 0);
    }
}
