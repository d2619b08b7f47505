//! The known addresses of this node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, Deadline, HostPort, interface_addresses, own_address_towards, resolve, resolve_local,
};
use c10d_store::{TcpStore, TcpStoreServer};

use crate::engine::own_address::{Advertised, Facts, advertised, is_usable};
use crate::shell::this_host;
use crate::values::node::NodeId;
use crate::values::start_warnings::StartWarnings;
use crate::values::store_access::StoreRoute;

/// The limit for looking up names.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// How many other nodes of a round are looked up for a route to one of them.
const LOOKED_UP_MAX: usize = 4;

/// The own addresses of a node of a dynamic rendezvous.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnHost {
    given: Option<String>,
    is_one_host: bool,
    name: Arc<OnceLock<(String, Vec<IpAddr>)>>,
    route: StoreRoute,
    hosted: Option<Arc<TcpStore>>,
    warnings: StartWarnings,
}

impl OwnHost {
    /// `is_one_host`: all nodes are on this host.
    pub(crate) fn new(given: Option<String>, is_one_host: bool) -> Self {
        Self {
            given,
            is_one_host,
            ..Self::default()
        }
    }

    /// Returns the addresses of a node that has this connection to the rendezvous' store, or serves the store.
    pub(crate) fn with_route(mut self, route: StoreRoute, hosted: Option<Arc<TcpStore>>) -> Self {
        self.route = route;
        self.hosted = hosted;
        self
    }

    pub(crate) fn with_warnings(mut self, warnings: StartWarnings) -> Self {
        self.warnings = warnings;
        self
    }

    /// The warnings about the start of this node.
    pub(crate) const fn warnings(&self) -> &StartWarnings {
        &self.warnings
    }

    /// The host that the user has chosen.
    pub(crate) fn given(&self) -> Option<&str> {
        self.given.as_deref()
    }

    /// Looks up what [`name`](Self::name) and [`advertised`](Self::advertised) need, so that they do not block for it.
    /// Does nothing if all nodes are on this host.
    pub(crate) fn look_up(&self) {
        if !self.is_one_host {
            self.named();
        }
    }

    /// The full name of this host, which the first call looks up for at most 2 s.
    pub(crate) fn name(&self) -> &str {
        &self.named().0
    }

    /// The name, and its addresses on this host; no addresses if all nodes are on this host. The first call blocks for
    /// at most 6 s.
    fn named(&self) -> &(String, Vec<IpAddr>) {
        self.name.get_or_init(|| {
            let name = this_host::full_name();
            let mut of_name = Vec::new();
            if !self.is_one_host {
                of_name = own_addresses(&name);
                of_name.extend(self.given.as_deref().map(own_addresses).unwrap_or_default());
            }
            (name, of_name)
        })
    }

    /// The name that a certificate of this node has, besides its address.
    pub(crate) fn name_for_certificates(&self) -> &str {
        let given = self.given.as_deref();
        let given = given.filter(|given| given.parse::<IpAddr>().is_err());
        given.unwrap_or_else(|| self.name())
    }

    /// The endpoint that this node was given.
    pub(crate) fn endpoint(&self) -> Option<&HostPort> {
        self.route.endpoint.as_ref()
    }

    /// The endpoint, if this node serves the rendezvous' store and other hosts should have reached it, but none has.
    pub(crate) fn unvisited(&self) -> Option<&HostPort> {
        let server = self.hosted.as_ref()?.server()?;
        let is_unvisited = !self.is_one_host && server.peers().is_empty();
        self.endpoint().filter(|_| is_unvisited)
    }

    /// The address at which other nodes reach the rendezvous' store, whose endpoint for this node is `endpoint`.
    pub(crate) fn reached(&self, endpoint: &HostPort, nodes: &[NodeId]) -> HostPort {
        let host = match (&self.hosted, self.route.remote) {
            _ if self.is_one_host => None,
            (Some(_), _) => Some(self.advertised(nodes).host),
            (None, Some(remote)) if is_usable(remote.ip()) => Some(remote.ip().to_string()),
            (None, _) => None,
        };
        let host = host.unwrap_or_else(|| endpoint.host().to_owned());
        HostPort::new(host, endpoint.port())
    }

    /// The route of this node to the rendezvous' store at this moment.
    pub(crate) fn route(&self) -> StoreRoute {
        let local = self.met(&[]).first().copied();
        let server = self.hosted.as_ref().and_then(|store| store.server());
        StoreRoute {
            local: local.or(self.route.local),
            peers: server.map(TcpStoreServer::peers).unwrap_or_default(),
            ..self.route.clone()
        }
    }

    /// The address at which other nodes reach this node. Blocks for at most 2 s to look up `others`, the other nodes of
    /// its round, if the rendezvous' store is a file.
    pub(crate) fn advertised(&self, others: &[NodeId]) -> Advertised {
        let (name, of_name) = self.named();
        let is_file = self.route.remote.is_none();
        // A server also listens there, even if the user has given an address. With a file, finding the address takes
        // lookups.
        let met = match self.is_one_host || (self.given.is_some() && is_file) {
            true => Vec::new(),
            false => self.met(others),
        };
        let has_use = met.iter().any(|ip| is_usable(*ip));
        let is_unknown = !has_use && (is_file || of_name.is_empty());
        advertised(&Facts {
            given: self.given.as_deref(),
            is_one_host: self.is_one_host,
            name,
            of_name,
            met: &met,
            other: is_unknown.then(some_address).flatten(),
        })
    }

    /// The own addresses at which other nodes have met this node, or will meet it.
    fn met(&self, others: &[NodeId]) -> Vec<IpAddr> {
        let server = self.hosted.as_ref().and_then(|store| store.server());
        if let Some(server) = server {
            let listening = server.local_addrs().iter().map(SocketAddr::ip);
            return server.reached_at().into_iter().chain(listening).collect();
        }
        match self.route.local {
            Some(local) => vec![local],
            None => route_to_one(others, self.name()).into_iter().collect(),
        }
    }
}

/// The own address on the way to the first of these nodes that has another name and is found.
fn route_to_one(others: &[NodeId], own_name: &str) -> Option<IpAddr> {
    let deadline = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
    let mut hosts: Vec<&str> = others.iter().map(|node| &*node.addr).collect();
    hosts.retain(|host| *host != own_name);
    hosts.dedup();
    let routes = hosts.into_iter().take(LOOKED_UP_MAX).filter_map(|host| {
        let found = resolve(&HostPort::new(host, 0), deadline, &Cancel::NEVER).ok()?;
        own_address_towards(SocketAddr::new(found.first()?.ip(), 1)).ok()
    });
    routes.into_iter().find(|ip| is_usable(*ip))
}

/// An address of this host, best the source address of its default route.
fn some_address() -> Option<IpAddr> {
    // This address belongs to no host (RFC 5737), and this process sends nothing to it.
    let elsewhere = SocketAddr::new(Ipv4Addr::new(198, 51, 100, 1).into(), 1);
    let by_default = own_address_towards(elsewhere).ok();
    by_default.filter(|ip| is_usable(*ip)).or_else(|| {
        let interfaces = interface_addresses().unwrap_or_default();
        let ips = interfaces.into_iter().map(|(_, ip)| ip);
        let mut ips: Vec<IpAddr> = ips.filter(|ip| is_usable(*ip)).collect();
        ips.sort_by_key(IpAddr::is_ipv6);
        ips.first().copied()
    })
}

/// The usable addresses of the interface with this name, first the addresses of the kind of `remote`; none for other text.
pub(crate) fn addresses_of_interface(name: &str, remote: Option<IpAddr>) -> Vec<IpAddr> {
    let interfaces = interface_addresses().unwrap_or_default();
    let of_it = interfaces.into_iter().filter(|(it, _)| it == name);
    let mut ips: Vec<IpAddr> = of_it.map(|(_, ip)| ip).collect();
    ips.retain(|ip| is_usable(*ip) || ip.is_loopback());
    let is_v6 = remote.is_some_and(|ip| ip.to_canonical().is_ipv6());
    ips.sort_by_key(|ip| ip.is_ipv6() != is_v6);
    ips
}

/// All addresses of this host that the user has given for it, as an address, a name or an interface, whose address that
/// other nodes get depends on their network. Blocks for at most 2 s to look up a name.
pub(crate) fn given_addresses(given: Option<&str>) -> Vec<IpAddr> {
    let given = given.unwrap_or_default();
    match addresses_of_interface(given, None) {
        ips if ips.is_empty() && !given.is_empty() => own_addresses(given),
        ips => ips,
    }
}

/// The addresses of this host that the name leads to. Blocks for at most 2 s.
fn own_addresses(name: &str) -> Vec<IpAddr> {
    let deadline = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
    let found = resolve_local(&HostPort::new(name, 0), deadline, &Cancel::NEVER);
    let ips = found.unwrap_or_default().into_iter();
    ips.map(|at| at.ip().to_canonical()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/spec/rendezvous.md, ADDR 2.
    #[test]
    fn a_given_address_name_or_interface_is_where_the_store_listens() {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for given in ["127.0.0.1", "localhost", "lo"] {
            let found = given_addresses(Some(given));
            assert!(found.contains(&here), "{given}: {found:?}");
        }
        // The address of a gateway, and a name without an address.
        for given in [None, Some("198.51.100.1"), Some("name.invalid")] {
            assert!(given_addresses(given).is_empty(), "{given:?}");
        }
    }
}
