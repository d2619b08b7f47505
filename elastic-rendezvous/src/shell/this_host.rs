//! Tells whether a host name means this machine, and finds this machine's full name.
//!
//! The answer decides which node hosts the store of a rendezvous without an `is_host` setting. The decisions
//! are pure over a [`Resolver`]; [`SystemResolver`] asks the system.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, resolve};

/// The names and addresses that the decisions depend on.
pub trait Resolver {
    /// The host name of the system, often without a domain; empty if it has none.
    fn host_name(&self) -> String;

    /// Returns the full name of this machine, which other machines use to reach it; without a full
    /// name, its host name.
    fn full_name(&self) -> String;

    /// The addresses of a host, without IPv4-mapped ones; empty if the lookup fails or times out.
    fn addresses(&self, host: &str) -> Vec<IpAddr>;

    /// Whether an interface of this machine has the address.
    fn has_address(&self, address: IpAddr) -> bool;
}

/// Whether `host`, without brackets, is this machine, so that its server can run here.
///
/// Like in PyTorch, true for `localhost`, loopback addresses, this machine's host name and full name, an
/// address of its name, and a name that shares an address with its name (`_matches_machine_hostname` in
/// `torch/distributed/elastic/rendezvous/utils.py`).
///
/// Unlike PyTorch, also true for every address of this machine's interfaces and for names of one, so that a
/// second network or an alias needs no `is_host` setting. False for the unspecified addresses (0.0.0.0,
/// `::`) and for names whose lookup fails.
///
/// An address that several machines share, such as the address of a virtual server or a container bridge,
/// belongs to each of them; set `is_host` there. Blocks as long as the resolver does.
///
/// ```
/// use c10d_socket::Deadline;
/// use elastic_rendezvous::this_host::{SystemResolver, is_this_host};
/// use std::time::{Duration, Instant};
///
/// let deadline = Deadline::after(Instant::now(), Duration::from_secs(5));
/// let resolver = SystemResolver::new(deadline);
/// assert!(is_this_host("localhost", &resolver));
/// assert!(!is_this_host("198.51.100.1", &resolver));
/// ```
pub fn is_this_host(host: &str, resolver: &impl Resolver) -> bool {
    let literal = host
        .parse()
        .ok()
        .map(|address: IpAddr| address.to_canonical());
    if host == "localhost" || literal.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    if host.is_empty() {
        return false;
    }
    let own_name = resolver.host_name();
    if host == own_name {
        return true;
    }
    let mut theirs = literal.map_or_else(|| resolver.addresses(host), |address| vec![address]);
    theirs.retain(|address| !address.is_unspecified());
    if theirs.iter().any(|&address| resolver.has_address(address)) {
        return true;
    }
    // An address can also mean this machine without being on its interfaces, as behind address translation.
    let own = resolver.addresses(&own_name);
    theirs.iter().any(|address| own.contains(address))
        || (literal.is_none() && host == resolver.full_name())
}

/// Returns the full name of this machine, which other nodes of a rendezvous use to connect to it.
///
/// The first of:
/// 1. the host name, if it has a domain;
/// 2. a name with a domain in a line of `/etc/hosts` that contains the host name;
/// 3. the host name in a search domain of `/etc/resolv.conf`, if it resolves to an address of this machine
///    or of its host name;
/// 4. the host name, or `localhost` if there is none.
///
/// This equals Python's `socket.getfqdn`, except when the hosts file maps the host name to 127.0.0.1: Python
/// then returns `localhost`, so that other nodes would connect to themselves. Blocks for at most 2 s; a
/// slower lookup counts as failed.
///
/// ```
/// assert!(!elastic_rendezvous::this_host::full_name().is_empty());
/// ```
#[must_use]
pub fn full_name() -> String {
    const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
    let deadline = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
    SystemResolver::new(deadline).full_name()
}

/// Asks the system by `getaddrinfo`, until a deadline.
///
/// A lookup that is still running at the deadline is left behind on its thread ([`resolve`]).
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver {
    deadline: Deadline,
}

impl SystemResolver {
    /// Creates a resolver whose lookups end at `deadline`.
    #[must_use]
    pub fn new(deadline: Deadline) -> Self {
        Self { deadline }
    }
}

impl Resolver for SystemResolver {
    fn host_name(&self) -> String {
        c10d_socket::host_name()
    }

    fn full_name(&self) -> String {
        let hosts = read_start("/etc/hosts");
        let resolver_settings = read_start("/etc/resolv.conf");
        choose_full_name(&self.host_name(), &hosts, &resolver_settings, self)
    }

    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return vec![address.to_canonical()];
        }
        if host.is_empty() {
            return Vec::new();
        }
        match resolve(&HostPort::new(host, 0), self.deadline, &Cancel::NEVER) {
            Ok(found) => found.iter().map(SocketAddr::ip).collect(),
            Err(error) => {
                log::debug!("cannot look up {host}: {error}");
                Vec::new()
            }
        }
    }

    /// Tries to bind a socket to the address, which only works for addresses of this machine. Returns `false`
    /// if the machine is configured to bind any address.
    fn has_address(&self, address: IpAddr) -> bool {
        /// Documentation addresses, which no machine has (RFC 5737, RFC 3849).
        const FOREIGN: (Ipv4Addr, Ipv6Addr) = (
            Ipv4Addr::new(198, 51, 100, 1),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
        );
        let foreign = match address {
            IpAddr::V4(_) => IpAddr::V4(FOREIGN.0),
            IpAddr::V6(_) => IpAddr::V6(FOREIGN.1),
        };
        can_bind(address) && !can_bind(foreign)
    }
}

fn can_bind(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Reads the first 256 KiB of a system file; empty if it cannot be read.
fn read_start(path: &str) -> String {
    const BYTES_MAX: u64 = 256 << 10;
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut start));
    if let Err(error) = read {
        log::debug!("cannot read {path}: {error}");
    }
    String::from_utf8_lossy(&start).into_owned()
}

fn choose_full_name(
    host_name: &str,
    hosts: &str,
    resolver_settings: &str,
    resolver: &impl Resolver,
) -> String {
    if host_name.is_empty() {
        return "localhost".to_owned();
    }
    if host_name.contains('.') {
        return host_name.to_owned();
    }
    if let Some(name) = full_name_in_hosts(host_name, hosts) {
        return name.to_owned();
    }
    let domains = search_domains(resolver_settings);
    let own = if domains.is_empty() {
        Vec::new()
    } else {
        resolver.addresses(host_name)
    };
    let is_own = |address: &IpAddr| own.contains(address) || resolver.has_address(*address);
    domains
        .iter()
        .map(|domain| format!("{host_name}.{domain}"))
        .find(|name| {
            // The final dot keeps the resolver from adding a search domain again.
            let found = resolver.addresses(&format!("{name}."));
            found.iter().any(is_own)
        })
        .unwrap_or_else(|| host_name.to_owned())
}

/// The first name with a domain that shares a line with `host_name`.
fn full_name_in_hosts<'a>(host_name: &str, hosts: &'a str) -> Option<&'a str> {
    hosts
        .lines()
        .filter_map(|line| {
            let line = line.split_once('#').map_or(line, |(line, _comment)| line);
            let names = line.split_ascii_whitespace().skip(1);
            names
                .clone()
                .any(|name| name.eq_ignore_ascii_case(host_name))
                .then_some(names)
        })
        .flatten()
        .find(|name| name.contains('.') && !name.to_ascii_lowercase().starts_with("localhost."))
}

/// Returns the search domains for short names: at most six, the limit of resolvers, from the last
/// line that has any.
fn search_domains(resolver_settings: &str) -> Vec<&str> {
    const DOMAINS_MAX: usize = 6;
    let given = resolver_settings.lines().rev().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        matches!(words.next(), Some("search" | "domain")).then_some(words)
    });
    given
        .into_iter()
        .flatten()
        .map(|domain| domain.trim_end_matches('.'))
        .filter(|domain| !domain.is_empty())
        .take(DOMAINS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up machine.
    struct Machine {
        host_name: &'static str,
        full_name: &'static str,
        names: &'static [(&'static str, &'static [&'static str])],
        interfaces: &'static [&'static str],
    }

    const NODE: Machine = Machine {
        host_name: "node0",
        full_name: "node0.example",
        names: &[
            ("node0", &["10.0.0.1", "fd00::1"]),
            ("alias.example", &["10.0.0.1"]),
            ("ib0.example", &["10.9.0.1"]),
            ("public.example", &["203.0.113.7"]),
            ("node1", &["10.0.0.2"]),
            ("nowhere", &["0.0.0.0"]),
        ],
        interfaces: &[
            "127.0.0.1",
            "::1",
            "10.0.0.1",
            "fd00::1",
            "10.9.0.1",
            "0.0.0.0",
            "::",
        ],
    };

    impl Resolver for Machine {
        fn host_name(&self) -> String {
            self.host_name.to_owned()
        }

        fn full_name(&self) -> String {
            self.full_name.to_owned()
        }

        fn addresses(&self, host: &str) -> Vec<IpAddr> {
            let found = self.names.iter().find(|(name, _)| *name == host);
            let addresses = found.map_or(&[][..], |(_, addresses)| addresses);
            addresses.iter().map(|text| text.parse().unwrap()).collect()
        }

        fn has_address(&self, address: IpAddr) -> bool {
            self.interfaces.contains(&address.to_string().as_str())
        }
    }

    #[test]
    fn names_of_this_host_in_pytorch_are_names_of_this_host() {
        for host in [
            "localhost",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "node0",
            "node0.example",
            "10.0.0.1",
            "fd00::1",
            "alias.example",
        ] {
            assert!(is_this_host(host, &NODE), "{host}");
        }
    }

    #[test]
    fn addresses_of_all_interfaces_are_this_host() {
        for host in [
            "10.9.0.1",
            "ib0.example",
            "::ffff:10.9.0.1",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_this_host(host, &NODE), "{host}");
        }
    }

    #[test]
    fn other_and_unknown_hosts_are_not_this_host() {
        for host in [
            "",
            "node1",
            "10.0.0.2",
            "fd00::2",
            "unknown",
            "nowhere",
            "0.0.0.0",
            "::",
            "[::1]",
            "public.example",
        ] {
            assert!(!is_this_host(host, &NODE), "{host}");
        }
    }

    #[test]
    fn an_address_of_the_own_name_is_this_host_without_an_interface() {
        let translated = Machine {
            names: &[
                ("node0", &["203.0.113.7"]),
                ("public.example", &["203.0.113.7"]),
            ],
            ..NODE
        };
        assert!(is_this_host("203.0.113.7", &translated));
        assert!(is_this_host("public.example", &translated));
    }

    #[test]
    fn a_machine_without_a_name_is_recognized_by_its_interfaces() {
        let nameless = Machine {
            host_name: "",
            full_name: "localhost",
            names: &[("alias.example", &["10.0.0.1"])],
            ..NODE
        };
        assert!(is_this_host("alias.example", &nameless));
        assert!(!is_this_host("", &nameless));
        assert!(!is_this_host("node0", &nameless));
    }

    #[test]
    fn the_full_name_comes_from_the_hosts_file() {
        let hosts = "\
            127.0.0.1 localhost localhost.localdomain\n\
            # 10.0.0.1 node0.commented node0\n\
            10.0.0.1\tNode0  node0.example # node0.comment\n\
            10.0.0.2 node1.example node1\n\
            10.0.0.3 node2.first node2.second node2\n\
            127.0.0.1 localhost.localdomain node3\n";
        for (host_name, full_name) in [
            ("node0", "node0.example"),
            ("node1", "node1.example"),
            ("node2", "node2.first"),
            ("node3", "node3"),
            ("node4", "node4"),
            ("node5.dotted", "node5.dotted"),
            ("", "localhost"),
        ] {
            assert_eq!(choose_full_name(host_name, hosts, "", &NODE), full_name);
        }
    }

    #[test]
    fn the_full_name_comes_from_the_search_domain_with_an_own_address() {
        let machine = Machine {
            names: &[
                ("node0", &["127.0.1.1"]),
                ("node0.other.example.", &["10.0.0.2"]),
                ("node0.own.example.", &["10.0.0.1"]),
            ],
            ..NODE
        };
        for (settings, full_name) in [
            (
                "nameserver 10.0.0.9\nsearch other.example own.example\n",
                "node0.own.example",
            ),
            (
                "search other.example\ndomain own.example.\n",
                "node0.own.example",
            ),
            ("search own.example\nsearch other.example\n", "node0"),
            ("search .\n", "node0"),
            ("#search own.example\n", "node0"),
        ] {
            assert_eq!(choose_full_name("node0", "", settings, &machine), full_name);
        }
    }

    #[test]
    fn the_system_has_loopback_addresses_but_no_foreign_ones() {
        let resolver =
            SystemResolver::new(Deadline::after(Instant::now(), Duration::from_secs(60)));
        assert!(resolver.has_address(Ipv4Addr::LOCALHOST.into()));
        assert!(!resolver.has_address(Ipv4Addr::new(198, 51, 100, 1).into()));
        assert!(!resolver.has_address(Ipv4Addr::new(203, 0, 113, 9).into()));
        let found = resolver.addresses("localhost");
        assert!(found.iter().any(IpAddr::is_loopback), "{found:?}");
        assert!(is_this_host(&resolver.host_name(), &resolver));
    }

    #[test]
    fn a_lookup_after_the_deadline_finds_nothing() {
        let resolver = SystemResolver::new(Deadline::at(Instant::now()));
        assert_eq!(resolver.addresses("name.invalid"), Vec::<IpAddr>::new());
        assert_eq!(
            resolver.addresses("::ffff:10.0.0.1"),
            [IpAddr::from([10, 0, 0, 1])]
        );
    }
}
