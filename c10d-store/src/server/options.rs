//! Limits and timeouts of a server.

use std::time::Duration;

use c10d_socket::Credentials;

use crate::limits::WireLimits;
#[cfg(feature = "extensions")]
use crate::{groups::NewGroups, journal::JournalSource};

/// Limits and timeouts of a [`TcpStoreServer`](super::TcpStoreServer). The defaults are far above what
/// PyTorch jobs use. Each refusal is logged with the peer's address.
///
/// ```
/// use c10d_store::ServerOptions;
/// use std::time::Duration;
///
/// let options = ServerOptions::default()
///     .with_connections_max(4096)
///     .with_handshake_timeout(Duration::from_secs(10));
/// assert_eq!(options.connections_max(), 4096);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ServerOptions {
    limits: WireLimits,
    unsent_bytes_max: usize,
    memory_max: Option<usize>,
    connections_max: usize,
    handshake_timeout: Duration,
    session_timeout: Duration,
    pub(crate) credentials: Option<Credentials>,
    pub(super) plain_from_same_user: bool,
    #[cfg(feature = "extensions")]
    pub(super) journal: Option<JournalSource>,
    #[cfg(feature = "extensions")]
    pub(super) groups: Option<NewGroups>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            limits: WireLimits::default(),
            unsent_bytes_max: 256 << 20,
            memory_max: None,
            connections_max: 1 << 18,
            handshake_timeout: Duration::from_secs(60),
            session_timeout: Duration::from_secs(600),
            credentials: None,
            plain_from_same_user: false,
            #[cfg(feature = "extensions")]
            journal: None,
            #[cfg(feature = "extensions")]
            groups: None,
        }
    }
}

impl ServerOptions {
    /// Returns the limits on single requests. Default [`WireLimits::default`].
    pub const fn limits(&self) -> &WireLimits {
        &self.limits
    }

    /// Returns the most memory for unsent reply bytes of one connection, in bytes; the server closes a connection
    /// that exceeds it. From 1 MiB the server already stops handling further requests of the peer until it reads, and
    /// values of 16 KiB and more are sent from the store's memory and do not count. So only a listing or a MULTI_GET
    /// of very many short values reaches this limit. Default 256 MiB; PyTorch has no limit.
    #[must_use]
    pub const fn unsent_bytes_max(&self) -> usize {
        self.unsent_bytes_max
    }

    /// Returns the most memory for keys, values, queues and waits, and for the sessions in a journal, in bytes, as
    /// the store counts it; `None` for no limit, the default, like PyTorch.
    ///
    /// Beyond the limit the server refuses requests that add data: it closes their connections. Reads and deletes
    /// continue. Unread replies and unfinished requests of all peers together may take the rest, and an eighth of the
    /// limit more (at least 16 MiB). If they take more, the server closes the peers that hold most of it.
    /// [`recommended_memory_max`](crate::recommended_memory_max) leaves room for that.
    #[must_use]
    pub const fn memory_max(&self) -> Option<usize> {
        self.memory_max
    }

    /// Returns the most connections at a time; the server closes further connections at once. Default 262,144, so
    /// that in practice the system's limit on open files applies, like with PyTorch's servers.
    #[must_use]
    pub const fn connections_max(&self) -> usize {
        self.connections_max
    }

    pub(crate) const fn handshake_timeout(&self) -> Duration {
        self.handshake_timeout
    }

    /// Serves only clients that have the same secret, or a certificate of the same authority: all other connections
    /// are closed at once. PyTorch's own clients cannot do either.
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets the credentials to a shared secret: see [`with_credentials`](Self::with_credentials).
    #[cfg(feature = "tls")]
    pub fn with_secret(self, secret: c10d_socket::Secret) -> Self {
        self.with_credentials(secret.into())
    }

    /// Sets whether a server with [credentials](Self::with_credentials) also serves plain connections over loopback
    /// of the user that runs it. [`c10d_socket::loopback_user`] finds out the user. Default false.
    pub const fn with_plain_from_same_user(mut self, plain_from_same_user: bool) -> Self {
        self.plain_from_same_user = plain_from_same_user;
        self
    }

    /// Sets the limits on single requests: see [`limits`](Self::limits).
    pub const fn with_limits(mut self, limits: WireLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the most memory for unsent reply bytes of one connection: see
    /// [`unsent_bytes_max`](Self::unsent_bytes_max).
    pub const fn with_unsent_bytes_max(mut self, bytes: usize) -> Self {
        self.unsent_bytes_max = bytes;
        self
    }

    /// Sets the most memory for the store's data, in bytes: see [`memory_max`](Self::memory_max).
    pub const fn with_memory_max(mut self, bytes: usize) -> Self {
        self.memory_max = Some(bytes);
        self
    }

    /// Sets the most connections at a time: see [`connections_max`](Self::connections_max).
    pub const fn with_connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections;
        self
    }

    /// Sets the time limit for the handshake of a new connection; [`Duration::MAX`] for none. Default 60 s: far above
    /// the slowest start seen, and short enough to close idle connections of port scanners. PyTorch has no limit. A
    /// server with [credentials](Self::with_credentials) gives the first byte 5 s of it.
    pub const fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }
}

#[cfg(feature = "extensions")]
impl ServerOptions {
    pub(crate) const fn session_timeout(&self) -> Duration {
        self.session_timeout
    }

    /// Sets the longest time that the server remembers a session (docs/spec/wire-extensions.md, section 9.9) whose
    /// connection is lost. The client may request less. After that time, the session's clients are considered to have
    /// closed their connections. Default 10 min.
    pub const fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Keeps the store in this journal: the server continues the store of the journal, and the store survives the
    /// server. See [`journal`](crate::journal). An open journal is for one server: a second server with a clone of
    /// these options is refused. A [`JournalSource`] opens it when the server listens.
    pub fn with_journal(mut self, journal: impl Into<JournalSource>) -> Self {
        self.journal = Some(journal.into());
        self
    }

    /// Lets process groups agree through the server about who takes part: see [`groups`](crate::groups). Default none.
    pub const fn with_groups(mut self, groups: NewGroups) -> Self {
        self.groups = Some(groups);
        self
    }
}
