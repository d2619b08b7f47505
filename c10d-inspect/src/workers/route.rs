//! Finds the route to a rank: through the launcher of its node, or through its debug server, by the unix socket on
//! this host or the address that the rank itself has published.
//!
//! Pure.

use std::net::{IpAddr, SocketAddr};

use c10d_socket::HostPort;

use crate::report::{NodeReport, RankReport};

/// The route to a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// The rank's processes and sockets are on this host.
    Here,
    /// The launcher of its node answers for it.
    Launcher(SocketAddr),
    /// The rank has published an address. If the host's name does not lead there, the addresses of its connections
    /// may.
    Published {
        server: HostPort,
        peers: Vec<IpAddr>,
    },
    /// The rank has no known debug server.
    None,
}

/// The subject of a question to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The stacks, which a launcher reads of its workers whatever program they run.
    Stacks,
    /// The records of flight recorders, which only debug servers have.
    Flights,
}

/// The facts about this host.
#[derive(Debug, Clone, Default)]
pub(super) struct Here<'a> {
    /// The name of this host.
    pub(super) host: &'a str,
    /// The address of the store, as used.
    pub(super) store: Option<IpAddr>,
}

impl Here<'_> {
    /// Whether a rank runs on this host, as far as names and addresses tell.
    pub(super) fn is_home_of(&self, rank: &RankReport) -> bool {
        if let Some(host) = &rank.host
            && self.is_same_host(host)
        {
            return true;
        }
        // Loopback addresses that reach the store are of the store's host, and so is this process.
        self.is_store_host()
            && !rank.connections.is_empty()
            && rank.connections.iter().all(|peer| peer.ip().is_loopback())
    }

    fn is_store_host(&self) -> bool {
        self.store.is_some_and(|store| store.is_loopback())
    }

    fn is_same_host(&self, host: &str) -> bool {
        fn short(name: &str) -> &str {
            name.split('.').next().unwrap_or_default()
        }
        let is_address = host.parse::<IpAddr>().is_ok();
        !self.host.is_empty() && !is_address && short(host).eq_ignore_ascii_case(short(self.host))
    }

    /// Returns the route to a rank. `has_socket` returns whether the unix socket of its debug server exists on this
    /// host.
    pub(super) fn route(
        &self,
        rank: &RankReport,
        nodes: &[NodeReport],
        has_socket: bool,
        subject: Subject,
    ) -> Route {
        let node = nodes.iter().find(|node| {
            node.ranks.0.contains(&rank.rank) && node.is_connected && node.debug_address.is_some()
        });
        let launcher = node.and_then(|node| self.launcher(node));
        match launcher.filter(|_| subject == Subject::Stacks || !has_socket) {
            Some(address) => return Route::Launcher(address),
            None if has_socket => return Route::Here,
            None => {}
        }
        if let Some(server) = rank.debug_url.as_deref().and_then(server_of) {
            let peers = rank.connections.iter().map(|peer| self.as_seen(peer.ip()));
            let mut peers: Vec<IpAddr> = peers.collect();
            peers.sort_unstable();
            peers.dedup();
            return Route::Published { server, peers };
        }
        if self.is_home_of(rank) {
            Route::Here
        } else {
            Route::None
        }
    }

    /// Returns the address at which the launcher of a node answers, because it may listen on all addresses of its
    /// host.
    pub(super) fn launcher(&self, node: &NodeReport) -> Option<SocketAddr> {
        let announced = node.debug_address?;
        if !announced.ip().is_unspecified() && !announced.ip().is_loopback() {
            return Some(announced);
        }
        let ip = node.address.map_or(announced.ip(), |address| address.ip());
        Some(SocketAddr::new(self.as_seen(ip), announced.port()))
    }

    /// Translates an address from the store's side to this host's side: its loopback is the loopback of the store's
    /// host.
    fn as_seen(&self, ip: IpAddr) -> IpAddr {
        match self.store {
            Some(store) if ip.is_loopback() && !store.is_loopback() => store,
            _ => ip,
        }
    }
}

/// The server of `http://host:port`, with or without a path.
pub(super) fn server_of(url: &str) -> Option<HostPort> {
    let rest = url.strip_prefix("http://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    authority.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Subject::{Flights, Stacks};
    use super::*;
    use crate::report::RankSet;

    fn rank(host: &str, peers: &[&str], url: Option<&str>) -> RankReport {
        RankReport {
            rank: 2,
            host: Some(host.to_owned()),
            connections: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
            debug_url: url.map(str::to_owned),
            ..RankReport::default()
        }
    }

    fn node(debug: &str, seen: &str) -> NodeReport {
        NodeReport {
            ranks: RankSet([2].into()),
            is_connected: true,
            debug_address: Some(debug.parse().unwrap()),
            address: Some(seen.parse().unwrap()),
            ..NodeReport::default()
        }
    }

    fn here(store: &str) -> Here<'_> {
        Here {
            host: "node7.example.org",
            store: Some(store.parse().unwrap()),
        }
    }

    fn launcher(address: &str) -> Route {
        Route::Launcher(address.parse().unwrap())
    }

    #[test]
    fn stacks_come_from_the_launcher_and_flights_first_from_a_socket_of_this_host() {
        let rank = rank("other", &["10.0.0.3:4000"], Some("http://other:25999"));
        let nodes = [node("10.0.0.3:7000", "10.0.0.3:5000")];
        let here = here("10.0.0.1");
        let route = |nodes: &[NodeReport], has_socket, subject| {
            here.route(&rank, nodes, has_socket, subject)
        };
        let by_launcher = launcher("10.0.0.3:7000");
        assert_eq!(route(&nodes, true, Flights), Route::Here);
        assert_eq!(route(&nodes, false, Flights), by_launcher);
        assert_eq!(route(&nodes, true, Stacks), by_launcher);
        assert_eq!(route(&[], true, Stacks), Route::Here);
        let published = Route::Published {
            server: "other:25999".parse().unwrap(),
            peers: vec!["10.0.0.3".parse().unwrap()],
        };
        assert_eq!(route(&[], false, Stacks), published);
        let mut lost = nodes;
        lost[0].is_connected = false;
        assert_eq!(route(&lost, false, Stacks), published);
    }

    #[test]
    fn an_address_that_names_no_host_is_replaced_by_what_the_store_sees() {
        let rank = rank("other", &[], None);
        let table = [
            ("10.0.0.1", "0.0.0.0:7000", "10.0.0.3:5000", "10.0.0.3:7000"),
            // The node of the store, asked from another host and from itself.
            (
                "10.0.0.1",
                "0.0.0.0:7000",
                "127.0.0.1:5000",
                "10.0.0.1:7000",
            ),
            (
                "127.0.0.1",
                "127.0.0.1:7000",
                "127.0.0.1:5000",
                "127.0.0.1:7000",
            ),
        ];
        for (store, debug, seen, expected) in table {
            let route = here(store).route(&rank, &[node(debug, seen)], false, Flights);
            assert_eq!(route, launcher(expected));
        }
    }

    #[test]
    fn a_rank_without_a_debug_server_is_looked_at_only_on_this_host() {
        let table = [
            ("node7", &[][..], "10.0.0.1", Route::Here),
            ("NODE7.example.org", &[], "10.0.0.1", Route::Here),
            ("node8", &["127.0.0.1:1"], "127.0.0.1", Route::Here),
            ("node8", &["127.0.0.1:1"], "10.0.0.1", Route::None),
            ("node8", &[], "127.0.0.1", Route::None),
            ("10.0.0.7", &[], "10.0.0.1", Route::None),
        ];
        for (host, peers, store, expected) in table {
            assert_eq!(
                here(store).route(&rank(host, peers, None), &[], false, Stacks),
                expected,
                "{host}"
            );
        }
    }

    #[test]
    fn odd_urls_lead_nowhere() {
        assert_eq!(
            server_of("http://vm:25999/x").unwrap().to_string(),
            "vm:25999"
        );
        assert_eq!(server_of("http://[::1]:1").unwrap().to_string(), "[::1]:1");
        for url in [
            "",
            "vm:1",
            "https://vm:1",
            "http://",
            "http://vm",
            "http://a b:1",
            "http://vm:99999",
        ] {
            assert_eq!(server_of(url), None, "{url}");
        }
    }
}
