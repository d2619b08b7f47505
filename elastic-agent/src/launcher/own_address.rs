//! The addresses of this machine.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of this machine's interfaces, without loopback and those of a single link, at most 64. None where there
/// is no /proc.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (routes, interfaces) = (read("/proc/net/fib_trie"), read("/proc/net/if_inet6"));
    let v6 = local_v6(&interfaces).map(IpAddr::V6);
    let addresses = local_v4(&routes).map(IpAddr::V4).chain(v6);
    let mut own: Vec<IpAddr> = addresses.filter(|it| !it.is_loopback()).collect();
    own.sort_unstable();
    own.dedup();
    own.truncate(64);
    own
}

/// The addresses of which the routing table says that they are local, each in the line before.
fn local_v4(routes: &str) -> impl Iterator<Item = Ipv4Addr> {
    let pairs = routes.lines().zip(routes.lines().skip(1));
    pairs.filter_map(|(address, kind)| {
        let address = address.trim_start().strip_prefix("|-- ")?;
        let is_local = kind.trim_end().ends_with("/32 host LOCAL");
        address.parse().ok().filter(|_| is_local)
    })
}

/// `fd000000000000000000000000000001 02 40 00 80 eth0`; the scope `20` is that of a link.
fn local_v6(interfaces: &str) -> impl Iterator<Item = Ipv6Addr> {
    interfaces.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        (words.nth(2)? != "20").then(|| Ipv6Addr::from_bits(address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_interfaces_are_found() {
        let routes = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.5\n        /32 host LOCAL\n     |-- 10.0.0.255\n        \
                      /32 link BROADCAST\n        |-- 127.0.0.1\n           /32 host LOCAL\n     |-- 10.0.0.0\n";
        let found: Vec<String> = local_v4(routes).map(|it| it.to_string()).collect();
        assert_eq!(found, ["10.0.0.5", "127.0.0.1"]);
        let interfaces = "fd000000000000000000000000000001 02 40 00 80     eth0\n\
                          fe800000000000000000000000000001 02 40 20 80     eth0\nx\n";
        let found: Vec<String> = local_v6(interfaces).map(|it| it.to_string()).collect();
        assert_eq!(found, ["fd00::1"]);
        let own = own_addresses();
        assert!(own.iter().all(|it| !it.is_loopback()), "{own:?}");
    }
}
