//! Chooses the address at which other nodes reach this node, and the addresses at which its workers' store listens.

use std::net::IpAddr;

/// The known addresses of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'f> {
    /// The address that the user has given.
    pub(crate) given: Option<&'f str>,
    /// Whether all nodes are on this host: a job of one node, or nodes that meet at a loopback address.
    pub(crate) is_one_host: bool,
    pub(crate) name: &'f str,
    /// The addresses of the name that this host has.
    pub(crate) of_name: &'f [IpAddr],
    /// The own addresses at which other nodes have met this node, the best address first.
    pub(crate) met: &'f [IpAddr],
    /// An own address for a name that leads to no address.
    pub(crate) other: Option<IpAddr>,
}

/// The address at which a node is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advertised {
    pub(crate) host: String,
    /// The other addresses at which the node may be reached.
    pub(crate) also: Vec<IpAddr>,
    /// The reason why other nodes do not get the host name, if that makes a difference.
    pub(crate) instead_of_name: Option<String>,
}

/// The address that a node advertises (docs/spec/rendezvous.md, ADDR 1).
pub(crate) fn advertised(facts: &Facts<'_>) -> Advertised {
    let usable = || facts.met.iter().copied().filter(|ip| is_usable(*ip));
    let also = || {
        let of_name = facts.of_name.iter().copied();
        let mut also: Vec<IpAddr> = of_name.filter(|ip| is_usable(*ip)).collect();
        also.extend(usable());
        also
    };
    let at = |host: &str, also| Advertised {
        host: host.to_owned(),
        also,
        instead_of_name: None,
    };
    if let Some(given) = facts.given {
        return at(given, also());
    }
    if facts.is_one_host {
        return at("127.0.0.1", Vec::new());
    }
    let address = usable().next().or_else(|| {
        let other = facts.other.filter(|ip| is_usable(*ip));
        other.filter(|_| !facts.of_name.iter().any(|ip| is_usable(*ip)))
    });
    let Some(address) = address else {
        return at(facts.name, also());
    };
    let instead_of_name = (!facts.of_name.contains(&address)).then(|| match facts.of_name {
        [] => "leads to no address of this host".to_owned(),
        [first, ..] => format!("leads to {first} here"),
    });
    Advertised {
        instead_of_name,
        ..at(&address.to_string(), also())
    }
}

/// Whether other hosts may reach the address. An address of a single link also needs an interface, which a host and a
/// port do not have.
pub(crate) const fn is_usable(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() {
        return false;
    }
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    const NODE: Facts<'static> = Facts {
        given: None,
        is_one_host: false,
        name: "node0",
        of_name: &[],
        met: &[],
        other: None,
    };

    /// A description, the addresses of the name, the addresses where nodes have met, another address, and the result.
    type Case = (
        &'static str,
        &'static [&'static str],
        &'static [&'static str],
        Option<&'static str>,
        &'static str,
    );

    fn host_of(facts: Facts<'_>) -> String {
        advertised(&facts).host
    }

    /// docs/spec/rendezvous.md, ADDR 1.
    #[test]
    fn the_address_that_a_node_advertises() {
        let table: &[Case] = &[
            ("met", &["10.8.8.1"], &["10.8.8.1"], None, "10.8.8.1"),
            ("localhost", &["127.0.0.1"], &["10.8.8.1"], None, "10.8.8.1"),
            ("of Debian", &["127.0.1.1"], &["10.8.8.1"], None, "10.8.8.1"),
            ("stale", &[], &["10.8.8.1"], None, "10.8.8.1"),
            (
                "another network",
                &["192.168.77.5"],
                &["10.8.8.1"],
                None,
                "10.8.8.1",
            ),
            ("IPv6", &["10.8.8.1"], &["fd00:8::1"], None, "fd00:8::1"),
            // A second launcher on the host of the store.
            ("by loopback", &["10.8.8.1"], &["127.0.0.1"], None, "node0"),
            (
                "only loopback",
                &["127.0.1.1"],
                &["127.0.1.1"],
                None,
                "node0",
            ),
            (
                "of one link",
                &["10.8.8.1"],
                &["fe80::1", "::", "169.254.3.4"],
                None,
                "node0",
            ),
            ("no name", &[], &["fe80::1"], Some("10.8.8.1"), "10.8.8.1"),
            ("nothing", &[], &[], None, "node0"),
            ("a file", &["127.0.0.1"], &[], Some("10.8.8.1"), "10.8.8.1"),
            (
                "a file and a name",
                &["10.8.8.1"],
                &[],
                Some("192.168.77.5"),
                "node0",
            ),
        ];
        for (case, of_name, met, other, expected) in table {
            let (of_name, met) = (ips(of_name), ips(met));
            let facts = Facts {
                of_name: &of_name,
                met: &met,
                other: other.map(|text| text.parse().unwrap()),
                ..NODE
            };
            assert_eq!(host_of(facts), *expected, "{case}");
            let given = Facts {
                given: Some("eth.example"),
                ..facts
            };
            assert_eq!(host_of(given), "eth.example", "{case}");
            let one_host = Facts {
                is_one_host: true,
                ..facts
            };
            assert_eq!(host_of(one_host), "127.0.0.1", "{case}");
        }
    }

    /// docs/spec/rendezvous.md, ADDR 2.
    #[test]
    fn a_store_listens_where_its_node_may_be_reached() {
        let (of_name, met) = (
            ips(&["127.0.1.1", "192.168.77.5"]),
            ips(&["10.8.8.1", "fe80::1"]),
        );
        let facts = Facts {
            of_name: &of_name,
            met: &met,
            ..NODE
        };
        assert_eq!(advertised(&facts).also, ips(&["192.168.77.5", "10.8.8.1"]));
        let one_host = Facts {
            is_one_host: true,
            ..facts
        };
        assert_eq!(advertised(&one_host).also, ips(&[]));
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_reported() {
        for (of_name, reported) in [
            (&["127.0.1.1"][..], Some("leads to 127.0.1.1 here")),
            (&["192.168.77.5"], Some("leads to 192.168.77.5 here")),
            (&[], Some("leads to no address of this host")),
            (&["192.168.77.5", "10.8.8.1"], None),
        ] {
            let of_name = ips(of_name);
            let facts = Facts {
                of_name: &of_name,
                met: &ips(&["10.8.8.1"]),
                ..NODE
            };
            let found = advertised(&facts).instead_of_name;
            assert_eq!(found.as_deref(), reported, "{of_name:?}");
        }
    }
}
