//! The server of a master: the addresses it listens on, and its sharing within a process.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{
    Deadline, HostPort, ListenError, ListenOptions, Process, adopt_listener, is_loopback_name,
    listen, listen_at, resolve_local, sleep,
};

use super::options::{ListenOn, TcpStoreOptions};
use crate::error::StoreError;
use crate::server::TcpStoreServer;

/// Multi-tenant servers by port.
type Tenants = HashMap<u16, Weak<TcpStoreServer>>;

/// The multi-tenant servers of a process. A forked child gets another lock, because threads that it does not have may hold
/// the lock of its parent for as long as a server starts.
struct OfProcess {
    process: Process,
    tenants: Mutex<Tenants>,
    child: OnceLock<Box<Self>>,
}

static OF_FIRST_PROCESS: OnceLock<OfProcess> = OnceLock::new();

/// The longest time for a server to stop after its last tenant has dropped it: it takes well under a
/// millisecond, but its thread must be scheduled.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(1);

/// The time from one failed lookup of a master's name to the next lookup.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the server of a master, or returns a server that it may share (docs/spec/wire.md, section 8).
pub(super) fn start(
    target: &HostPort,
    options: &mut TcpStoreOptions,
    deadline: Deadline,
) -> Result<Arc<TcpStoreServer>, StoreError> {
    let shared = |tenants: &Tenants| {
        let server = tenants.get(&target.port())?.upgrade()?;
        (options.multi_tenant && server.is_running()).then_some(server)
    };
    if let Some(server) = shared(&lock_tenants()) {
        return Ok(server);
    }
    let ips = host_ips(target, options, deadline)?;
    if !options.multi_tenant {
        return Ok(Arc::new(start_new(target, options, &ips)?));
    }
    // Held while the server starts, so that two masters on one port cannot both start one. Starting
    // means a bind and a thread; the name lookup, which can take long, is over.
    let mut tenants = lock_tenants();
    if let Some(server) = shared(&tenants) {
        return Ok(server);
    }
    // The thread of a server that its last tenant dropped may still be closing the port.
    let may_be_closing = tenants.contains_key(&target.port());
    let patience = Deadline::after(Instant::now(), CLOSING_TIME_MAX).min(deadline);
    let server = loop {
        match start_new(target, options, &ips) {
            Err(StoreError::Listen(error))
                if error.is_address_in_use()
                    && may_be_closing
                    && !patience.has_passed(Instant::now()) =>
            {
                thread::sleep(Duration::from_millis(1));
            }
            result => break Arc::new(result?),
        }
    };
    tenants.retain(|_, server| server.strong_count() > 0);
    tenants.insert(server.local_addr().port(), Arc::downgrade(&server));
    Ok(server)
}

impl OfProcess {
    fn new() -> Self {
        Self {
            process: Process::this(),
            tenants: Mutex::default(),
            child: OnceLock::new(),
        }
    }
}

fn lock_tenants() -> MutexGuard<'static, Tenants> {
    let mut of = OF_FIRST_PROCESS.get_or_init(OfProcess::new);
    while !of.process.is_this() {
        of = of.child.get_or_init(|| Box::new(OfProcess::new()));
    }
    of.tenants.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address at which a client in the same process reaches the server.
pub(super) fn address_from_here(server: &TcpStoreServer) -> SocketAddr {
    let mut address = server.local_addr();
    match address.ip() {
        // Dual stack: every machine has IPv4 loopback.
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

fn start_new(
    target: &HostPort,
    options: &mut TcpStoreOptions,
    ips: &[IpAddr],
) -> Result<TcpStoreServer, StoreError> {
    let listeners = match options.listener.take() {
        Some(listener) => {
            // A clone of the options still has it.
            let listener = Arc::try_unwrap(listener).or_else(|shared| shared.try_clone());
            let listener = listener.map_err(|source| StoreError::Server { source })?;
            vec![adopt_listener(listener.into(), target.port())?]
        }
        None => listen_for(target, options, ips)?,
    };
    let mut server_options = options.server_options.clone();
    if server_options.credentials.is_none() {
        server_options.credentials.clone_from(&options.credentials);
    }
    TcpStoreServer::serve(listeners, server_options)
}

/// Listens at the addresses of the options; `ips` are [`host_ips`].
fn listen_for(
    target: &HostPort,
    options: &TcpStoreOptions,
    ips: &[IpAddr],
) -> Result<Vec<TcpListener>, ListenError> {
    let on_port = ListenOptions::default().with_port(target.port());
    match options.listen_on {
        ListenOn::AllInterfaces => listen(&on_port),
        ListenOn::Address(ip) => listen(&on_port.with_host(ip.to_string())),
        ListenOn::Host | ListenOn::HostIfKnown if is_loopback_name(target.host()) => {
            listen(&on_port.with_host(target.host()))
        }
        ListenOn::Host | ListenOn::HostIfKnown => listen_at(ips, target.port()),
    }
}

/// Returns the addresses of the master's host to listen on; none for all interfaces, or if the options have others.
/// Without other addresses, a lookup is repeated until the deadline, because a name may become known late.
fn host_ips(
    target: &HostPort,
    options: &TcpStoreOptions,
    deadline: Deadline,
) -> Result<Vec<IpAddr>, ListenError> {
    let is_optional = match options.listen_on {
        ListenOn::Host => !options.listen_also_on.is_empty(),
        ListenOn::HostIfKnown => true,
        ListenOn::AllInterfaces | ListenOn::Address(_) => return Ok(Vec::new()),
    };
    if options.listener.is_some() || is_loopback_name(target.host()) {
        return Ok(Vec::new());
    }
    let cancel = &options.cancel;
    let local = loop {
        match resolve_local(target, deadline, cancel) {
            Ok(local) => break local.iter().map(SocketAddr::ip).collect(),
            Err(error) if cancel.is_cancelled() => return Err(error),
            Err(error) if !is_optional => {
                let now = Instant::now();
                let is_last = deadline.has_passed(now + LOOKUP_INTERVAL);
                if is_last || sleep(LOOKUP_INTERVAL, [cancel]).is_err() {
                    return Err(error);
                }
            }
            Err(error) => {
                log::debug!("looking for addresses to listen on: {error}");
                break Vec::new();
            }
        }
    };
    Ok(
        choose_addresses(local, &options.listen_also_on).unwrap_or_else(|reason| {
            log::warn!(
                "the store at port {} listens on all interfaces: {} {reason}",
                target.port(),
                target.host()
            );
            Vec::new()
        }),
    )
}

/// Returns where to listen, given the addresses of a name that this machine has and the further addresses of the options, or
/// why on all interfaces.
fn choose_addresses(mut ips: Vec<IpAddr>, also: &[IpAddr]) -> Result<Vec<IpAddr>, &'static str> {
    ips.extend(also);
    ips.retain(|ip| !is_link_local(*ip));
    if ips.is_empty() {
        return Err("is not an address of this machine");
    }
    if ips.iter().all(IpAddr::is_loopback) {
        // Many distributions map a machine's own name to 127.0.1.1, while other nodes resolve it to
        // the real address: they could not connect to a server on loopback only.
        return Err("leads to loopback here, but maybe not elsewhere");
    }
    Ok(ips)
}

/// A link-local address is only valid with an interface, which a list of addresses does not contain.
const fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if is_link_local_v6(ip))
}

const fn is_link_local_v6(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_listens_on_the_addresses_of_its_name() {
        let ips = |texts: &[&str]| -> Vec<IpAddr> {
            texts
                .iter()
                .map(|text| text.parse().expect("an address"))
                .collect()
        };
        for (local, also, expected) in [
            (&["10.0.0.5"][..], &[][..], &["10.0.0.5"][..]),
            (
                &["fe80::1", "fd00::5", "10.0.0.5"],
                &[],
                &["fd00::5", "10.0.0.5"],
            ),
            (&["10.0.0.5"], &["10.8.0.5"], &["10.0.0.5", "10.8.0.5"]),
            // A host name in the hosts file.
            (&["127.0.1.1"], &["10.0.0.5"], &["127.0.1.1", "10.0.0.5"]),
            (&[], &["10.0.0.5"], &["10.0.0.5"]),
        ] {
            let chosen = choose_addresses(ips(local), &ips(also));
            assert_eq!(chosen, Ok(ips(expected)), "{local:?} {also:?}");
        }
        for (local, also) in [
            (&[][..], &[][..]),
            (&["fe80::1"], &[]),
            (&["127.0.1.1"], &[]),
            (&["127.0.1.1"], &["127.0.0.1", "fe80::1"]),
        ] {
            let chosen = choose_addresses(ips(local), &ips(also));
            assert!(chosen.is_err(), "{local:?} {also:?}");
        }
    }
}
