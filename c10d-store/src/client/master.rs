//! The server of a master: the addresses it listens on, and its sharing within a process.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{
    Deadline, HostPort, ListenError, ListenOptions, adopt_listener, is_loopback_name, listen,
    resolve_local,
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
    if let Some(server) = tenants.get(&target.port()).and_then(Weak::upgrade) {
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
    match choose_addresses(&local, &options.listen_also_on) {
        Choice::These { first, further } => {
            let mut listeners = listen_on_each(&first, target.port())?;
            for ip in further {
                let port = listeners[0].local_addr();
                let port = port.map_err(|source| no_address(ip, target.port(), source))?;
                match listen_on_each(&[ip], port.port()) {
                    Ok(more) => listeners.extend(more),
                    Err(error) => {
                        log::debug!("not listening at a further address of {target}: {error}")
                    }
                }
            }
            Ok(listeners)
        }
        Choice::AllInterfaces(reason) => {
            log::warn!(
                "the store at port {} listens on all interfaces: {} {reason}",
                target.port(),
                target.host()
            );
            listen(&on_port(target.port()))
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// All addresses of the first list, which is not empty, and the usable addresses of the second list.
    These {
        first: Vec<IpAddr>,
        further: Vec<IpAddr>,
    },
    AllInterfaces(&'static str),
}

/// Decides where to listen, given the addresses of a name that this machine has, and the further addresses of the options.
fn choose_addresses(local: &[IpAddr], also: &[IpAddr]) -> Choice {
    let reachable = |ips: &[IpAddr]| -> Vec<IpAddr> {
        let ips = ips.iter().copied();
        ips.filter(|ip| !is_link_local(*ip)).collect()
    };
    let (mut first, mut further) = (reachable(local), reachable(also));
    further.retain(|ip| !first.contains(ip));
    if first.is_empty() {
        first.append(&mut further);
    }
    if first.is_empty() {
        return Choice::AllInterfaces("is not an address of this machine");
    }
    if first.iter().chain(&further).all(IpAddr::is_loopback) {
        // Many distributions map a machine's own name to 127.0.1.1, while other nodes resolve it to
        // the real address: they could not connect to a server on loopback only.
        return Choice::AllInterfaces("leads to loopback here, but maybe not elsewhere");
    }
    Choice::These { first, further }
}

/// A link-local address is only valid with an interface, which a list of addresses does not contain.
const fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if is_link_local_v6(ip))
}

const fn is_link_local_v6(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

fn listen_on_each(addresses: &[IpAddr], port: u16) -> Result<Vec<TcpListener>, ListenError> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    for ip in addresses {
        let port = match listeners.first().map(TcpListener::local_addr) {
            Some(Ok(first)) => first.port(),
            Some(Err(source)) => return Err(no_address(*ip, port, source)),
            None => port,
        };
        let options = ListenOptions::default()
            .with_host(ip.to_string())
            .with_port(port);
        listeners.extend(listen(&options)?);
    }
    Ok(listeners)
}

fn no_address(ip: IpAddr, port: u16, source: io::Error) -> ListenError {
    ListenError::Address {
        address: SocketAddr::new(ip, port),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(local: &[&str], also: &[&str]) -> Choice {
        choose_addresses(&ips(local), &ips(also))
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts
            .iter()
            .map(|text| text.parse().expect("an address"))
            .collect()
    }

    #[test]
    fn a_master_listens_on_the_addresses_of_its_name() {
        let these = |first: &[&str], further: &[&str]| Choice::These {
            first: ips(first),
            further: ips(further),
        };
        for (local, also, expected) in [
            (&["10.0.0.5"][..], &[][..], these(&["10.0.0.5"], &[])),
            (
                &["fe80::1", "fd00::5", "10.0.0.5"],
                &[],
                these(&["fd00::5", "10.0.0.5"], &[]),
            ),
            (
                &["10.0.0.5"],
                &["10.0.0.5", "10.8.0.5"],
                these(&["10.0.0.5"], &["10.8.0.5"]),
            ),
            // A host name in the hosts file.
            (
                &["127.0.1.1"],
                &["10.0.0.5"],
                these(&["127.0.1.1"], &["10.0.0.5"]),
            ),
            (&[], &["10.0.0.5"], these(&["10.0.0.5"], &[])),
        ] {
            assert_eq!(choose(local, also), expected, "{local:?} {also:?}");
        }
        for (local, also) in [
            (&[][..], &[][..]),
            (&["fe80::1"], &[]),
            (&["127.0.1.1"], &[]),
            (&["127.0.1.1"], &["127.0.0.1", "fe80::1"]),
        ] {
            let choice = choose(local, also);
            assert!(
                matches!(choice, Choice::AllInterfaces(_)),
                "{local:?} {also:?}"
            );
        }
    }
}
