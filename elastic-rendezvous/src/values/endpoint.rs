//! Parses endpoints as users write them: a host and an optional port.
//!
//! Resolves no names. The endpoint of a file store is a path and is not parsed here.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use c10d_socket::HostPort;

use crate::values::parameters_error::EndpointError;

/// A host and an optional port: `node0`, `node0:29400`, `[fd00::1]:29400`. Empty text is `localhost`.
///
/// The text is split at its last colon, unless brackets enclose all of it; brackets around the host are
/// removed. A host consists of letters and digits of any script, `_`, `.`, `-` and `:`. The port has one
/// to five digits. With port 0 the server chooses one.
///
/// Texts that PyTorch accepts (`parse_rendezvous_endpoint` in
/// `torch/distributed/elastic/rendezvous/utils.py`) give the same result here, with one exception: PyTorch
/// splits an IPv6 address without brackets and port, such as `::1` or `fe80::1`, into an impossible host
/// (`:`, `fe80:`) and a port, and then waits for that host. Here a host with colons that is not an IPv6
/// address is an error. `fd00::1:29400` is `fd00::1` and 29400, like in PyTorch.
///
/// ```
/// use elastic_rendezvous::{DEFAULT_PORT, Endpoint};
///
/// let endpoint: Endpoint = "[::1]:5".parse()?;
/// assert_eq!((endpoint.host(), endpoint.port()), ("::1", Some(5)));
/// let target = "".parse::<Endpoint>()?.with_default_port(DEFAULT_PORT);
/// assert_eq!(target.to_string(), "localhost:29400");
/// assert!("::1".parse::<Endpoint>().is_err());
/// # Ok::<(), elastic_rendezvous::EndpointError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    host: String,
    port: Option<u16>,
}

impl Endpoint {
    /// The host, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; `None` if the endpoint has none.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Host and port, with `port` if the endpoint has none.
    #[must_use]
    pub fn with_default_port(&self, port: u16) -> HostPort {
        HostPort::new(self.host.as_str(), self.port.unwrap_or(port))
    }
}

/// Formats the endpoint so that it parses to the same value.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self {
                host: "localhost".to_owned(),
                port: None,
            });
        }
        if text.parse::<Ipv6Addr>().is_ok() && !is_address_with_port(text) {
            return Err(EndpointError::BareIpv6 {
                address: text.to_owned(),
            });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !is_bracketed(text) => (host, Some(port)),
            _ => (text, None),
        };
        let host = if is_bracketed(host) {
            &host[1..host.len() - 1]
        } else {
            host
        };
        let port = port.map(|port| parse_port(text, port)).transpose()?;
        if !is_host(host) {
            return Err(EndpointError::Host {
                endpoint: text.to_owned(),
                host: host.to_owned(),
            });
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// Whether a text that is an IPv6 address can also be an address and a port, such as `fd00::1:2940`.
/// PyTorch prefers the latter.
fn is_address_with_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(address, port)| {
        address.parse::<Ipv6Addr>().is_ok() && parse_port(text, port).is_ok()
    })
}

fn is_bracketed(text: &str) -> bool {
    text.len() > 1 && text.starts_with('[') && text.ends_with(']')
}

fn parse_port(endpoint: &str, port: &str) -> Result<u16, EndpointError> {
    let is_decimal = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    port.parse()
        .ok()
        .filter(|_| is_decimal)
        .ok_or_else(|| EndpointError::Port {
            endpoint: endpoint.to_owned(),
            port: port.to_owned(),
        })
}

fn is_host(host: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "_.:-".contains(c);
    let can_exist = !host.contains(':') || host.parse::<Ipv6Addr>().is_ok();
    !host.is_empty() && host.chars().all(is_part) && can_exist
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed_as_in_pytorch() {
        for (text, host, port) in [
            ("", "localhost", None),
            ("   ", "localhost", None),
            ("host", "host", None),
            (" host:1 ", "host", Some(1)),
            ("host:1\n", "host", Some(1)),
            ("host\u{a0}", "host", None),
            ("host:0", "host", Some(0)),
            ("host:65535", "host", Some(65535)),
            ("host:00001", "host", Some(1)),
            ("[::1]", "::1", None),
            ("[::1]:5", "::1", Some(5)),
            ("[::]:29400", "::", Some(29400)),
            ("[fe80::1]", "fe80::1", None),
            ("[::ffff:10.0.0.1]:7", "::ffff:10.0.0.1", Some(7)),
            ("fe80::1:29400", "fe80::1", Some(29400)),
            ("::1:29400", "::1", Some(29400)),
            ("::1:2940", "::1", Some(2940)),
            ("2001:db8::5:29400", "2001:db8::5", Some(29400)),
            ("10.0.0.1:29400", "10.0.0.1", Some(29400)),
            ("[10.0.0.1]:4", "10.0.0.1", Some(4)),
            ("[host]:1", "host", Some(1)),
            ("[host]", "host", None),
            ("host_1.a-b:5", "host_1.a-b", Some(5)),
            ("münchen:1", "münchen", Some(1)),
            ("1:2", "1", Some(2)),
            ("-:1", "-", Some(1)),
            ("..:1", "..", Some(1)),
            ("0.0.0.0:1", "0.0.0.0", Some(1)),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host(), endpoint.port()), (host, port), "{text:?}");
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint), "{text:?}");
        }
    }

    #[test]
    fn invalid_ports_are_refused_as_in_pytorch() {
        for text in [
            "host:",
            "host:-1",
            "host:+1",
            "host:65536",
            "host:1a",
            "host: 1",
            "host:000001",
            "host:29400:",
            "a:٣",
            "::1]",
            "[::1]5",
            "[::1]:",
            ":",
            "10.0.0.1:99999",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(
                matches!(error, EndpointError::Port { .. }),
                "{text:?}: {error}"
            );
        }
    }

    #[test]
    fn invalid_hosts_are_refused_as_in_pytorch() {
        for text in [
            "[fe80::1%eth0]:1",
            "fe80::1%eth0:1",
            "a b",
            "host :1",
            "[]",
            "[",
            "[]:1",
            "]:1",
            "[:1",
            "http://h:1",
            "/tmp/store",
            "*:1",
            ":1",
            "[a]b]",
            "[[::1]]:1",
            "[::1",
            "a\u{203f}b:1",
            "\u{200b}:1",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(
                matches!(error, EndpointError::Host { .. }),
                "{text:?}: {error}"
            );
        }
    }

    #[test]
    fn impossible_hosts_that_pytorch_accepts_are_refused() {
        for text in [
            "host:1:2",
            "a:b:29400",
            "[:]:1",
            "1:2:3:4:5:6:7:29400",
            "host\n:1",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(
                matches!(error, EndpointError::Host { .. }),
                "{text:?}: {error}"
            );
        }
        for text in ["::", "::1", "fe80::1", "fe80::abcd", "1:2:3:4:5:6:7:8"] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(
                matches!(error, EndpointError::BareIpv6 { .. }),
                "{text:?}: {error}"
            );
        }
    }

    #[test]
    fn errors_show_the_correct_form() {
        for (text, message) in [
            (
                "::1",
                "the endpoint \"::1\" needs brackets, for example [::1]:29400",
            ),
            (
                "node0:http",
                "invalid port \"http\" in the endpoint \"node0:http\": not a number from 0 to 65535",
            ),
            (
                "a b:1",
                "invalid host \"a b\" in the endpoint \"a b:1\": neither a name nor an address (an \
                 IPv6 address with a port is written [::1]:29400)",
            ),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn the_default_port_replaces_a_missing_one_but_not_zero() {
        let port = |text: &str| {
            text.parse::<Endpoint>()
                .unwrap()
                .with_default_port(7)
                .port()
        };
        assert_eq!((port("host"), port("host:0"), port("[::1]")), (7, 0, 7));
    }
}
