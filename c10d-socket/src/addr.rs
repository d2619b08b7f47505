//! `host:port`, parsed and printed.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::{is_printable, printable};

/// The longest host that is shown. Names that a resolver accepts are shorter.
const HOST_CHARS_MAX: usize = 255;

/// The address of a server: a host (a name or a literal address) and a port.
///
/// Written `host:port`, an IPv6 address in brackets. Does no name lookup. `Display` makes a host that a peer has
/// named [`printable`].
///
/// ```
/// use c10d_socket::HostPort;
///
/// let target: HostPort = "[::1]:29500".parse()?;
/// assert_eq!((target.host(), target.port()), ("::1", 29500));
/// assert_eq!(HostPort::new("node0", 29500).to_string(), "node0:29500");
/// assert!("::1".parse::<HostPort>().is_err());
/// # Ok::<(), c10d_socket::HostPortError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// Takes a host without brackets, and a port. Accepts any text as a host: a name that does not
    /// exist fails when it is looked up.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Returns the host, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, 0 for any.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host as an address. `None` for a name, and for an IPv6 address with a zone
    /// (`fe80::1%eth0`): these need a lookup.
    pub(crate) fn literal(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A peer may have named it.
        let host = printable(&self.host, HOST_CHARS_MAX);
        if self.host.contains(':') {
            write!(f, "[{host}]:{}", self.port)
        } else {
            write!(f, "{host}:{}", self.port)
        }
    }
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| HostPortError {
            text: text.to_owned(),
            reason,
        };
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or(fail(Reason::UnclosedBracket))?;
            if !is_ipv6(host) {
                return Err(fail(Reason::NotIpv6));
            }
            let port = rest.strip_prefix(':').ok_or(fail(Reason::NoPort))?;
            (host, port)
        } else {
            let (host, port) = text.rsplit_once(':').ok_or(fail(Reason::NoPort))?;
            if host.contains(':') {
                return Err(fail(Reason::BareIpv6));
            }
            (host, port)
        };
        if host.is_empty() {
            return Err(fail(Reason::NoHost));
        }
        let is_bad = |c: char| c.is_whitespace() || !is_printable(c) || "[]/".contains(c);
        // Accepted text is shown unchanged, so that it has the same meaning.
        if host.contains(is_bad) || host.chars().nth(HOST_CHARS_MAX).is_some() {
            return Err(fail(Reason::BadHost));
        }
        // The integer parser accepts "+80".
        if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(fail(Reason::BadPort));
        }
        let port = port.parse().map_err(|_| fail(Reason::BadPort))?;
        Ok(Self::new(host, port))
    }
}

/// A text that is not `host:port`. `Display` shows the text and the reason.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not host:port: {reason}")]
pub struct HostPortError {
    text: String,
    reason: Reason,
}

crate::debug_as_display!(HostPortError);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error(
        "the host contains a space, a bracket, a slash or a character that cannot be shown, or is too long"
    )]
    BadHost,
    #[error("the port is not a number from 0 to 65535")]
    BadPort,
    #[error("an IPv6 address needs brackets, for example [::1]:29500")]
    BareIpv6,
    #[error("the host is missing")]
    NoHost,
    #[error("the port is missing")]
    NoPort,
    #[error("the text between the brackets is not an IPv6 address")]
    NotIpv6,
    #[error("the bracket is not closed")]
    UnclosedBracket,
}

/// Returns whether `host` is a loopback address (127.0.0.0/8, also mapped into IPv6, or `::1`) or the name
/// `localhost` in any case.
///
/// Decides by the text, without a lookup: `false` does not mean that `host` is another machine.
///
/// ```
/// use c10d_socket::is_loopback_name;
///
/// assert!(is_loopback_name("LocalHost") && is_loopback_name("::ffff:127.0.0.1"));
/// assert!(!is_loopback_name("node0") && !is_loopback_name("0.0.0.0"));
/// ```
#[must_use]
pub fn is_loopback_name(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => is_localhost(host),
    }
}

/// Whether `host` is the name `localhost`, in any case.
pub(crate) fn is_localhost(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
}

/// Whether `host` is an IPv6 address, with or without a zone.
fn is_ipv6(host: &str) -> bool {
    let address = host
        .split_once('%')
        .map_or(host, |(address, _zone)| address);
    address.parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_and_parse_round_trip() {
        for text in [
            "node0:29500",
            "127.0.0.1:0",
            "[::1]:65535",
            "[fe80::1%eth0]:1",
            "a.b-c.example:80",
            "n\u{f6}de:1",
            &format!("{}:80", "n".repeat(255)),
        ] {
            let parsed: HostPort = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn parse_errors_name_the_reason() {
        for (text, reason) in [
            ("", Reason::NoPort),
            ("node0", Reason::NoPort),
            ("[::1]", Reason::NoPort),
            ("[::1]29500", Reason::NoPort),
            (":29500", Reason::NoHost),
            ("::1", Reason::BareIpv6),
            ("::1:29500", Reason::BareIpv6),
            ("[::1:29500", Reason::UnclosedBracket),
            ("[node0]:29500", Reason::NotIpv6),
            ("[]:29500", Reason::NotIpv6),
            ("node0:", Reason::BadPort),
            ("node0:+80", Reason::BadPort),
            ("node0:65536", Reason::BadPort),
            ("node0:http", Reason::BadPort),
            ("node 0:80", Reason::BadHost),
            ("tcp//node0:80", Reason::BadHost),
            ("node0\u{1b}[2J:80", Reason::BadHost),
            // They are shown as escapes, which would be another host.
            ("nod\u{356}e:80", Reason::BadHost),
            ("\u{202e}node:80", Reason::BadHost),
            (&format!("{}:80", "n".repeat(256)), Reason::BadHost),
        ] {
            assert_eq!(
                text.parse::<HostPort>().unwrap_err().reason,
                reason,
                "{text}"
            );
        }
        assert_eq!(
            "::1".parse::<HostPort>().unwrap_err().to_string(),
            "\"::1\" is not host:port: an IPv6 address needs brackets, for example [::1]:29500"
        );
    }

    #[test]
    fn loopback_hosts_are_recognized_by_their_text() {
        for host in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "LOCALHOST",
        ] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in [
            "",
            "::",
            "0.0.0.0",
            "10.0.0.1",
            "localhost.example",
            "[::1]",
        ] {
            assert!(!is_loopback_name(host), "{host}");
        }
    }
}
