//! Errors of connecting and listening.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::HostPort;

/// Connecting failed. The caller's failed handshakes are the only data that was sent.
///
/// `Display` shows the target, the elapsed time and each failure; [`Error::source`] is the last failure.
#[derive(Clone)]
pub struct ConnectError(Box<ConnectErrorParts>);

crate::debug_as_display!(ConnectError);

#[derive(Debug, Clone)]
pub(crate) struct ConnectErrorParts {
    pub(crate) target: HostPort,
    pub(crate) reason: GaveUp,
    pub(crate) elapsed: Duration,
    pub(crate) limit: Option<Duration>,
    pub(crate) rounds: u64,
    pub(crate) failures: Vec<DialFailure>,
    pub(crate) forgotten: u64,
}

/// The standard library's words before the reason why a name has no address.
const LOOKUP: &str = "failed to lookup address information: ";

/// The reason why connecting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GaveUp {
    TimedOut,
    NoUsableAddress,
    Cancelled,
}

impl ConnectError {
    pub(crate) fn new(parts: ConnectErrorParts) -> Self {
        Self(Box::new(parts))
    }

    /// Returns whether the deadline stopped the attempts, so that a longer timeout might help. Otherwise no address
    /// was usable, and an immediate retry will not help.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.0.reason == GaveUp::TimedOut
    }

    /// Returns whether a [`Cancel`](crate::Cancel) interrupted the attempts.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.reason == GaveUp::Cancelled
    }

    /// Returns whether the machine refused the connection or closed it after accepting: no server runs there at the
    /// moment.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.0.failures.iter().any(|failure| {
            matches!(
                failure.error().kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::UnexpectedEof
            )
        })
    }

    /// Returns the host and port of the server.
    #[must_use]
    pub fn target(&self) -> &HostPort {
        &self.0.target
    }

    /// Returns the time from the start to the failure.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed
    }

    /// Returns the time from the start to the deadline; `None` without a deadline.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.0.limit
    }

    /// Replaces the time limit, if there was one. For a caller that has spent a part of its timeout before it
    /// connects, and reports the whole timeout.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        if self.0.limit.is_some() {
            self.0.limit = Some(limit);
        }
        self
    }

    /// Replaces the elapsed time and the time limit. For a caller that connects in several attempts, and reports them
    /// as a single attempt.
    #[must_use]
    pub fn with_total(mut self, elapsed: Duration, limit: Duration) -> Self {
        self.0.elapsed = elapsed;
        self.0.limit = Some(limit);
        self
    }

    /// Returns the number of rounds; a round is a name lookup and an attempt on each address.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.0.rounds
    }

    /// Returns the failures, the latest last: at most the latest 16 different failures.
    #[must_use]
    pub fn failures(&self) -> &[DialFailure] {
        &self.0.failures
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &*self.0;
        write!(f, "cannot connect to {}: ", parts.target)?;
        match parts.failures.as_slice() {
            [only] if parts.forgotten == 0 => {
                let address = only.stage.address().map(|it| it.to_string());
                if let Some(address) = address.filter(|it| *it != parts.target.to_string()) {
                    write!(f, "{address}: ")?;
                }
                if matches!(only.stage, DialStage::Handshake(_)) {
                    f.write_str("the handshake failed: ")?;
                }
                let text = only.error.to_string();
                write!(f, "{}; ", text.strip_prefix(LOOKUP).unwrap_or(&text))?;
            }
            failures => {
                for failure in failures {
                    write!(f, "{failure}; ")?;
                }
                if parts.forgotten > 0 {
                    write!(f, "{} older failures of other kinds; ", parts.forgotten)?;
                }
            }
        }
        let attempts = parts.forgotten + parts.failures.iter().map(|each| each.count).sum::<u64>();
        let plural = if attempts == 1 { "" } else { "s" };
        let elapsed = parts.elapsed.as_secs_f64();
        match parts.reason {
            GaveUp::TimedOut => {
                write!(
                    f,
                    "gave up after {attempts} attempt{plural} in {elapsed:.3}s"
                )?;
                if let Some(limit) = parts.limit {
                    write!(f, " (limit {:.3}s)", limit.as_secs_f64())?;
                }
            }
            GaveUp::Cancelled => {
                write!(
                    f,
                    "cancelled after {attempts} attempt{plural} in {elapsed:.3}s"
                )?;
            }
            GaveUp::NoUsableAddress => f.write_str("no address is usable")?,
        }
        match (parts.reason, parts.failures.last()) {
            (GaveUp::Cancelled, _) | (_, None) => Ok(()),
            (_, Some(last)) => f.write_str(last.hint()),
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let last = self.0.failures.last()?;
        Some(&*last.error)
    }
}

/// A failed step of connecting: the step, how often it failed, and its last error.
#[derive(Debug, Clone)]
pub struct DialFailure {
    pub(crate) stage: DialStage,
    pub(crate) count: u64,
    pub(crate) error: Arc<io::Error>,
}

impl DialFailure {
    /// Returns the step that failed.
    #[must_use]
    pub fn stage(&self) -> DialStage {
        self.stage
    }

    /// Returns the number of times that the step failed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the latest error of this step.
    #[must_use]
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Returns advice for the end of the message. The errors of a handshake contain their own advice.
    fn hint(&self) -> &'static str {
        match (self.stage, self.error.kind()) {
            (DialStage::Lookup, _) => ". Check the host name",
            (DialStage::Handshake(_), _) => "",
            (DialStage::Connect(_), io::ErrorKind::ConnectionRefused) => {
                ". Is the server running there?"
            }
            (DialStage::Connect(_), _) => {
                ". Is the server running there, and do the network and its firewalls let connections pass?"
            }
        }
    }
}

impl fmt::Display for DialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stage {
            DialStage::Lookup => f.write_str("the name lookup failed")?,
            DialStage::Connect(address) => write!(f, "{address} failed")?,
            DialStage::Handshake(address) => write!(f, "{address} failed after connecting")?,
        }
        match self.count {
            1 => f.write_str(" once")?,
            count => write!(f, " {count} times")?,
        }
        write!(f, " ({})", self.error)
    }
}

/// A step of connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DialStage {
    /// The TCP connection to this address.
    Connect(SocketAddr),
    /// The caller's handshake on a connection to this address.
    Handshake(SocketAddr),
    /// The name lookup.
    Lookup,
}

impl DialStage {
    fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Connect(address) | Self::Handshake(address) => Some(address),
            Self::Lookup => None,
        }
    }
}

/// Listening failed. No socket stays bound.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address cannot be bound or listened on.
    #[error("cannot listen on {address}: {source}{}", hint(source))]
    Address {
        /// The address; port 0 means any.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The descriptor is not a bound TCP socket that can listen. It has been closed, unless the caller
    /// passed a bare number.
    #[error("cannot listen on file descriptor {fd}: {source}")]
    Descriptor {
        /// The descriptor's number.
        fd: RawFd,
        /// The system's error.
        source: io::Error,
    },
    /// The host name cannot be looked up.
    #[error("cannot look up {host} to listen on it: {source}")]
    Lookup {
        /// The host name.
        host: String,
        /// The system's error.
        source: io::Error,
    },
    /// The descriptor is bound to another port than expected. It has been closed, unless the caller
    /// passed a bare number.
    // The text is PyTorch's (torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp).
    #[error("listen fd {fd} is bound to port {actual}, expected to be bound to port {expected}")]
    WrongPort {
        /// The descriptor's number.
        fd: RawFd,
        /// The port it is bound to.
        actual: u16,
        /// The expected port.
        expected: u16,
    },
}

crate::debug_as_display!(ListenError);

impl ListenError {
    /// Returns whether another socket uses the port.
    #[must_use]
    pub fn is_address_in_use(&self) -> bool {
        match self {
            Self::Address { source, .. } | Self::Descriptor { source, .. } => {
                source.kind() == io::ErrorKind::AddrInUse
            }
            Self::Lookup { .. } | Self::WrongPort { .. } => false,
        }
    }
}

/// The operator's remedy for the most common causes.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; choose another port, or stop the process that uses it",
        io::ErrorKind::AddrNotAvailable => "; this machine does not have the address",
        _ => "",
    }
}

/// Implements `Debug` of an error by its `Display`: `unwrap`, and a `main` that returns the error, print the text.
#[macro_export]
macro_rules! debug_as_display {
    ($error:ty) => {
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os_error(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    fn failure(stage: DialStage, count: u64, code: i32) -> DialFailure {
        DialFailure {
            stage,
            count,
            error: Arc::new(os_error(code)),
        }
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_connect_error_lists_every_failure() {
        let parts = ConnectErrorParts {
            target: HostPort::new("node0", 29500),
            reason: GaveUp::TimedOut,
            elapsed: Duration::from_millis(4_901),
            limit: Some(Duration::from_secs(5)),
            rounds: 8,
            failures: vec![
                failure(DialStage::Lookup, 1, libc::EAGAIN),
                failure(
                    DialStage::Connect(address("[::1]:29500")),
                    7,
                    libc::ECONNREFUSED,
                ),
                failure(
                    DialStage::Handshake(address("127.0.0.1:29500")),
                    2,
                    libc::ECONNRESET,
                ),
            ],
            forgotten: 3,
        };
        let errno = |code| os_error(code).to_string();
        let error = ConnectError::new(parts.clone());
        assert_eq!(
            error.to_string(),
            format!(
                "cannot connect to node0:29500: \
                 the name lookup failed once ({}); [::1]:29500 failed 7 times ({}); \
                 127.0.0.1:29500 failed after connecting 2 times ({}); \
                 3 older failures of other kinds; gave up after 13 attempts in 4.901s (limit 5.000s)",
                errno(libc::EAGAIN),
                errno(libc::ECONNREFUSED),
                errno(libc::ECONNRESET),
            )
        );
        assert_eq!(error.source().unwrap().to_string(), errno(libc::ECONNRESET));

        let error = ConnectError::new(ConnectErrorParts {
            reason: GaveUp::NoUsableAddress,
            failures: vec![failure(
                DialStage::Connect(address("10.0.0.1:29500")),
                1,
                libc::ENETUNREACH,
            )],
            forgotten: 0,
            ..parts.clone()
        });
        assert_eq!(
            error.to_string(),
            format!(
                "cannot connect to node0:29500: 10.0.0.1:29500: {}; no address is usable. Is the server running there, and \
                 do the network and its firewalls let connections pass?",
                errno(libc::ENETUNREACH)
            )
        );
        let one = |target, stage, code| {
            let error = ConnectError::new(ConnectErrorParts {
                target,
                failures: vec![failure(stage, 2, code)],
                forgotten: 0,
                ..parts.clone()
            });
            error.to_string()
        };
        let here = address("127.0.0.1:29500");
        assert_eq!(
            one(
                HostPort::new("127.0.0.1", 29500),
                DialStage::Connect(here),
                libc::ECONNREFUSED
            ),
            format!(
                "cannot connect to 127.0.0.1:29500: {}; gave up after 2 attempts in 4.901s (limit 5.000s). Is the server \
                 running there?",
                errno(libc::ECONNREFUSED)
            )
        );
        assert_eq!(
            one(
                HostPort::new("node0", 29500),
                DialStage::Lookup,
                libc::EAGAIN
            ),
            format!(
                "cannot connect to node0:29500: {}; gave up after 2 attempts in 4.901s (limit 5.000s). Check the host name",
                errno(libc::EAGAIN)
            )
        );
    }

    #[test]
    fn listen_errors_have_their_texts() {
        let in_use = os_error(libc::EADDRINUSE);
        let foreign = os_error(libc::EADDRNOTAVAIL);
        let bad_fd = os_error(libc::EBADF);
        let table = [
            (
                format!(
                    "cannot listen on [::]:29500: {in_use}; choose another port, or stop the process that uses it"
                ),
                ListenError::Address {
                    address: address("[::]:29500"),
                    source: in_use,
                },
            ),
            (
                format!(
                    "cannot listen on 10.0.0.1:80: {foreign}; this machine does not have the address"
                ),
                ListenError::Address {
                    address: address("10.0.0.1:80"),
                    source: foreign,
                },
            ),
            (
                format!("cannot listen on file descriptor 7: {bad_fd}"),
                ListenError::Descriptor {
                    fd: 7,
                    source: bad_fd,
                },
            ),
            (
                "cannot look up node0 to listen on it: no such name".to_owned(),
                ListenError::Lookup {
                    host: "node0".to_owned(),
                    source: io::Error::other("no such name"),
                },
            ),
            (
                "listen fd 7 is bound to port 1, expected to be bound to port 2".to_owned(),
                ListenError::WrongPort {
                    fd: 7,
                    actual: 1,
                    expected: 2,
                },
            ),
        ];
        for (text, error) in table {
            assert_eq!(error.to_string(), text);
            let in_use = text.contains("another port");
            assert_eq!(error.is_address_in_use(), in_use, "{text}");
        }
    }
}
