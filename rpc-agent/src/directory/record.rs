//! One member as text: its name, its address and its incarnation.
//!
//! Pure. Other processes wrote what is parsed here, so its length is limited and parsing is strict.

use std::fmt;

use c10d_socket::HostPort;

use crate::worker::{WorkerError, WorkerId, WorkerInfo, WorkerName};

/// The longest address, in bytes. A host name has at most 253 bytes; scheme, port and incarnation fit in
/// the rest.
pub(crate) const ADDRESS_BYTES_MAX: usize = 300;

/// Number of hexadecimal digits of an incarnation.
const INCARNATION_DIGITS: usize = 16;

const SCHEME: &str = "tcp://";

/// The key with the name, address and incarnation of one worker of a static group.
pub(super) fn claim_key(id: WorkerId) -> String {
    format!("names/{id}")
}

/// The address at which a worker listens, and its incarnation: a random number for each start of the worker.
///
/// A dialer names the incarnation that it expects, so that it does not talk to another process that has
/// reused the port, or to a restarted worker.
///
/// The text form is `tcp://127.0.0.1:40225#00c0ffee00c0ffee`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host_port: HostPort,
    pub(crate) incarnation: u64,
}

impl Address {
    /// Converts the address of a listener, `host:port`.
    pub(crate) fn new(host_port: &str, incarnation: u64) -> Result<Self, RecordError> {
        if host_port.len() > ADDRESS_BYTES_MAX - SCHEME.len() - 1 - INCARNATION_DIGITS {
            return Err(RecordError::TooLong {
                bytes: host_port.len(),
            });
        }
        let host_port: HostPort = host_port
            .parse()
            .map_err(|error: c10d_socket::HostPortError| RecordError::Address(error.to_string()))?;
        if host_port.port() == 0 {
            return Err(RecordError::Address(
                "port 0 cannot be connected to".to_owned(),
            ));
        }
        Ok(Self {
            host_port,
            incarnation,
        })
    }

    pub(crate) fn parse(text: &str) -> Result<Self, RecordError> {
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(RecordError::TooLong { bytes: text.len() });
        }
        let bad = |what: &str| RecordError::Address(format!("{text:?}: {what}"));
        let rest = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| bad("it does not begin with tcp://"))?;
        let (host_port, incarnation) = rest
            .rsplit_once('#')
            .ok_or_else(|| bad("the incarnation is missing"))?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if incarnation.len() != INCARNATION_DIGITS || !incarnation.bytes().all(is_digit) {
            return Err(bad("the incarnation is not 16 hexadecimal digits"));
        }
        let incarnation = u64::from_str_radix(incarnation, 16)
            .map_err(|_| bad("the incarnation is not 16 hexadecimal digits"))?;
        Self::new(host_port, incarnation)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}#{:016x}", self.host_port, self.incarnation)
    }
}

/// A worker and its address. The text form is the name, a space and the address; names have no spaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) info: WorkerInfo,
    pub(crate) address: Address,
}

impl Member {
    /// The longest text of a member, in bytes.
    pub(crate) const BYTES_MAX: usize =
        crate::worker::WORKER_NAME_BYTES_MAX + 1 + ADDRESS_BYTES_MAX;

    /// Parses the value that the worker with this id wrote.
    pub(crate) fn parse(id: WorkerId, bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > Self::BYTES_MAX {
            return Err(RecordError::TooLong { bytes: bytes.len() });
        }
        let text = std::str::from_utf8(bytes).map_err(|_| RecordError::NotText)?;
        let (name, address) = text.split_once(' ').ok_or(RecordError::NoAddress)?;
        Ok(Self {
            info: WorkerInfo {
                id,
                name: WorkerName::new(name)?,
            },
            address: Address::parse(address)?,
        })
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.info.name, self.address)
    }
}

/// Why a text is not a member or not a list of members.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("{bytes} bytes are too long")]
    TooLong { bytes: usize },
    #[error("it is not UTF-8")]
    NotText,
    #[error("there is no space between a name and an address")]
    NoAddress,
    #[error("invalid address: {0}")]
    Address(String),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("line {line} of the list: {what}")]
    Line { line: usize, what: String },
    #[error("more than {max} members")]
    TooMany { max: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_formatting_and_parsing() {
        for (host_port, text) in [
            ("127.0.0.1:40225", "tcp://127.0.0.1:40225#00c0ffee00c0ffee"),
            ("[::1]:1", "tcp://[::1]:1#00c0ffee00c0ffee"),
            (
                "node-0.rack:65535",
                "tcp://node-0.rack:65535#00c0ffee00c0ffee",
            ),
        ] {
            let address = Address::new(host_port, 0x00c0_ffee_00c0_ffee).unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(Address::parse(text), Ok(address));
        }
        let last = Address::new("a:1", u64::MAX).unwrap();
        assert_eq!(Address::parse(&last.to_string()), Ok(last));
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_reason() {
        let long = format!("tcp://{}:1#0000000000000000", "h".repeat(300));
        for (text, reason) in [
            ("", "tcp://"),
            ("uv://a:1#0000000000000000", "tcp://"),
            ("tcp://a:1", "incarnation is missing"),
            ("tcp://a:1#1", "16 hexadecimal digits"),
            ("tcp://a:1#000000000000000G", "16 hexadecimal digits"),
            ("tcp://a:1#+000000000000001", "16 hexadecimal digits"),
            ("tcp://a:1#00000000000000AA", "16 hexadecimal digits"),
            ("tcp://a:0#0000000000000000", "port 0"),
            ("tcp://a:65536#0000000000000000", "port"),
            ("tcp://:1#0000000000000000", "host is missing"),
            ("tcp://a b:1#0000000000000000", "a space"),
            (long.as_str(), "too long"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_member_is_parsed_from_its_name_and_its_address() {
        let id = WorkerId::new(7).unwrap();
        let text = "trainer:0-a tcp://10.0.0.1:5#0000000000000009";
        let member = Member::parse(id, text.as_bytes()).unwrap();
        assert_eq!(member.info, WorkerInfo::new("trainer:0-a", 7).unwrap());
        assert_eq!(member.address, Address::new("10.0.0.1:5", 9).unwrap());
        assert_eq!(member.to_string(), text);
    }

    #[test]
    fn an_invalid_member_is_refused_with_the_reason() {
        let id = WorkerId::new(0).unwrap();
        let long = vec![b'a'; Member::BYTES_MAX + 1];
        for (bytes, reason) in [
            (&b""[..], "no space"),
            (b"name", "no space"),
            (b"\xff tcp://a:1#0000000000000000", "UTF-8"),
            (b"a/b tcp://a:1#0000000000000000", "Worker name must match"),
            (b" tcp://a:1#0000000000000000", "Worker name must match"),
            (b"a  tcp://a:1#0000000000000000", "tcp://"),
            (long.as_slice(), "too long"),
        ] {
            let error = Member::parse(id, bytes).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
