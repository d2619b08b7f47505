//! Which `Host` headers are answered.
//!
//! DNS rebinding: a page of a stranger makes its own name resolve to this server's address; the browser then takes
//! this server for a part of the stranger's site and lets the page read the answers. The Host header still has the
//! stranger's name. So only names that a stranger cannot own are accepted: addresses, `localhost`, this machine's
//! name, and the names that the operator gave.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a request for this host is answered. `host` is a Host header: a name or an address, and maybe a port.
pub(super) fn is_accepted(host: &str, names: &[String]) -> bool {
    let Some(host) = without_port(host) else {
        return false;
    };
    match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => {
            let name = host.strip_suffix('.').unwrap_or(host);
            host.parse::<Ipv4Addr>().is_ok()
                || name.eq_ignore_ascii_case("localhost")
                || (!name.is_empty() && names.iter().any(|own| name.eq_ignore_ascii_case(own)))
        }
    }
}

fn without_port(host: &str) -> Option<&str> {
    let address_end = host.rfind(']').map_or(0, |end| end + 1);
    match host[address_end..].find(':') {
        None => Some(host),
        Some(colon) => {
            let (name, port) = host.split_at(address_end + colon);
            port[1..]
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then_some(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_stranger_cannot_own_are_accepted() {
        let names = ["node7".to_owned(), "status.example.org".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:29500",
            "10.0.0.3:",
            "[::1]",
            "[::1]:29500",
            "[fe80::1]:1",
            "localhost",
            "LocalHost:8080",
            "localhost.",
            "node7",
            "NODE7.:29500",
            "status.example.org:443",
        ] {
            assert!(is_accepted(host, &names), "{host}");
        }
        for host in [
            "",
            ".",
            ":29500",
            "evil.example.com",
            "evil.example.com:29500",
            "node7.evil.example.com",
            "localhost.evil.example.com",
            "127.0.0.1.evil.example.com",
            "127.0.0.1@evil.example.com",
            "[::1",
            "::1",
            "[::1]x",
            "[evil]",
            "localhost:x",
            "node",
            "[::1]:80:90",
        ] {
            assert!(!is_accepted(host, &names), "{host}");
        }
    }
}
