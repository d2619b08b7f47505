//! How a [`TcpStore`](super::TcpStore) is opened.

use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use c10d_socket::ConnectOptions;

use crate::limits::WireLimits;
use crate::server::ServerOptions;
use crate::store::DEFAULT_TIMEOUT;

/// The options of [`TcpStore::open`](super::TcpStore::open); the defaults make a plain client. The
/// names are those of PyTorch's `TCPStore` constructor.
///
/// ```
/// use c10d_store::{Store, TcpStore, TcpStoreOptions};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let options = TcpStoreOptions::default()
///     .with_master(true)
///     .with_timeout(Duration::from_secs(30));
/// let store = TcpStore::open("127.0.0.1", 0, options)?;
/// store.set("ready", b"1")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TcpStoreOptions {
    pub(super) world_size: Option<usize>,
    pub(super) is_master: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) wait_for_workers: bool,
    pub(super) multi_tenant: bool,
    pub(super) listener: Option<TcpListener>,
    pub(super) listen_on: ListenOn,
    pub(super) connect_options: ConnectOptions,
    pub(super) server_options: ServerOptions,
    pub(super) limits: WireLimits,
    pub(super) reply_bytes_max: usize,
}

/// The address on which a master listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ListenOn {
    /// The addresses that the store's host name means, if they are this machine's. Otherwise, and
    /// when a name that other machines may resolve means a loopback address here, all interfaces,
    /// with a warning: PyTorch's store always listens on all, which has let strangers in before
    /// (CVE-2025-47277).
    #[default]
    Host,
    /// All interfaces.
    AllInterfaces,
    /// One address.
    Address(IpAddr),
}

impl Default for TcpStoreOptions {
    fn default() -> Self {
        Self {
            world_size: None,
            is_master: false,
            timeout: Some(DEFAULT_TIMEOUT),
            wait_for_workers: true,
            multi_tenant: false,
            listener: None,
            listen_on: ListenOn::default(),
            connect_options: ConnectOptions::default(),
            server_options: ServerOptions::default(),
            limits: WireLimits::default(),
            reply_bytes_max: 1 << 30,
        }
    }
}

impl TcpStoreOptions {
    /// The number of workers, at least 1. Default: not fixed, and nobody is counted.
    #[must_use]
    pub const fn with_world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Whether this process hosts the server. Default: no.
    #[must_use]
    pub const fn with_master(mut self, is_master: bool) -> Self {
        self.is_master = is_master;
        self
    }

    /// The time limit for connecting, and the default timeout of later operations; `None` waits
    /// indefinitely. Default 300 s, as in PyTorch. An operation that the server answers at once gets
    /// at least 250 ms, so that a timeout of zero checks once without waiting.
    #[must_use]
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Whether the master returns only when all workers have joined. Default yes; has no effect
    /// without a world size.
    #[must_use]
    pub const fn with_wait_for_workers(mut self, wait: bool) -> Self {
        self.wait_for_workers = wait;
        self
    }

    /// Whether a master shares the server of an earlier multi-tenant master in this process that has
    /// the same port, instead of starting its own. Default: no.
    #[must_use]
    pub const fn with_multi_tenant(mut self, multi_tenant: bool) -> Self {
        self.multi_tenant = multi_tenant;
        self
    }

    /// A bound socket, listening or not, for the master to listen on (PyTorch's `master_listen_fd`;
    /// an `OwnedFd` converts into a `TcpListener`). The port must be the store's, or that must be 0.
    #[must_use]
    pub fn with_listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Where a master listens. Default [`ListenOn::Host`].
    #[must_use]
    pub const fn with_listen_on(mut self, listen_on: ListenOn) -> Self {
        self.listen_on = listen_on;
        self
    }

    /// How connections are made: backoff and socket options.
    #[must_use]
    pub fn with_connect_options(mut self, options: ConnectOptions) -> Self {
        self.connect_options = options;
        self
    }

    /// The limits of a master's server.
    #[must_use]
    pub fn with_server_options(mut self, options: ServerOptions) -> Self {
        self.server_options = options;
        self
    }

    /// What the server takes, as far as this client checks before it sends. Default: what PyTorch's
    /// server takes. A server that is sent more closes the connection, so raise this only together
    /// with the server's own limits.
    #[must_use]
    pub const fn with_limits(mut self, limits: WireLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The longest value that the client accepts from the server, in bytes. Default 1 GiB: APPEND
    /// can make values longer than one request may bring.
    #[must_use]
    pub const fn with_reply_bytes_max(mut self, bytes: usize) -> Self {
        self.reply_bytes_max = bytes;
        self
    }
}
