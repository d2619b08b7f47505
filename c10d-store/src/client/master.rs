//! The server of a master: the addresses it listens on, and its sharing within a process.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{
    Deadline, HostPort, ListenError, ListenOptions, adopt_listener, is_loopback_name, listen,
    listen_at, resolve_local,
};

use super::options::{ListenOn, TcpStoreOptions};
use crate::error::StoreError;
use crate::server::TcpStoreServer;

/// The multi-tenant servers of this process, by port.
static TENANTS: Mutex<Option<HashMap<u16, Weak<TcpStoreServer>>>> = Mutex::new(None);

/// The longest time for a server to stop after its last tenant has dropped it: it takes well under a
/// millisecond, but its thread must be scheduled.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(1);

/// Starts the server of a master, or returns one that it may share (docs/spec/wire.md, section 8).
pub(super) fn start(
    target: &HostPort,
    options: &mut TcpStoreOptions,
    deadline: Deadline,
) -> Result<Arc<TcpStoreServer>, StoreError> {
    if !options.multi_tenant {
        return Ok(Arc::new(start_new(target, options, deadline)?));
    }
    // Held while the server starts, so that two masters on one port cannot both start one. Starting
    // means a bind and a thread; only a name lookup can take long.
    let mut tenants = TENANTS.lock().unwrap_or_else(PoisonError::into_inner);
    let tenants = tenants.get_or_insert_default();
    // A forked child cannot share the server of its parent.
    let present = tenants.get(&target.port()).and_then(Weak::upgrade);
    if let Some(server) = present.filter(|server| server.is_running()) {
        return Ok(server);
    }
    // The thread of a server that its last tenant dropped may still be closing the port.
    let may_be_closing = tenants.contains_key(&target.port());
    let patience = Deadline::after(Instant::now(), CLOSING_TIME_MAX).min(deadline);
    let server = loop {
        match start_new(target, options, deadline) {
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
    deadline: Deadline,
) -> Result<TcpStoreServer, StoreError> {
    let listeners = match options.listener.take() {
        Some(listener) => vec![adopt_listener(listener.into(), target.port())?],
        None => listen_for(target, options, deadline)?,
    };
    let mut server_options = options.server_options.clone();
    if server_options.credentials.is_none() {
        server_options.credentials.clone_from(&options.credentials);
    }
    TcpStoreServer::serve(listeners, server_options)
}

fn listen_for(
    target: &HostPort,
    options: &TcpStoreOptions,
    deadline: Deadline,
) -> Result<Vec<TcpListener>, ListenError> {
    let on_port = |port: u16| ListenOptions::default().with_port(port);
    let cancel = &options.cancel;
    match options.listen_on {
        ListenOn::AllInterfaces => return listen(&on_port(target.port())),
        ListenOn::Address(ip) => {
            return listen(&on_port(target.port()).with_host(ip.to_string()));
        }
        ListenOn::Host if is_loopback_name(target.host()) => {
            return listen(&on_port(target.port()).with_host(target.host()));
        }
        ListenOn::Host => {}
    }
    let local = match resolve_local(target, deadline, cancel) {
        Ok(local) => local.iter().map(SocketAddr::ip).collect(),
        Err(error) if cancel.is_cancelled() => return Err(error),
        Err(error) => {
            log::debug!("looking for addresses to listen on: {error}");
            Vec::new()
        }
    };
    let ips = match choose_addresses(local, &options.listen_also_on) {
        Ok(ips) => ips,
        Err(reason) => {
            log::warn!(
                "the store at port {} listens on all interfaces: {} {reason}",
                target.port(),
                target.host()
            );
            Vec::new()
        }
    };
    listen_at(&ips, target.port())
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
