//! Options of [`TcpStore::open`](super::TcpStore::open).

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use c10d_socket::{Cancel, ConnectOptions, Credentials};

use crate::address::Lookup;
use crate::limits::WireLimits;
use crate::server::ServerOptions;
use crate::store::DEFAULT_TIMEOUT;

/// The options of [`TcpStore::open`](super::TcpStore::open), with the names of PyTorch's `TCPStore` constructor. The
/// defaults make a plain client. A clone has the same [listener](Self::with_listener).
///
/// ```
/// use c10d_store::{StoreExt, TcpStore, TcpStoreOptions};
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
#[derive(Debug, Clone)]
#[must_use]
pub struct TcpStoreOptions {
    pub(super) world_size: Option<usize>,
    pub(super) is_master: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) wait_for_workers: bool,
    pub(super) multi_tenant: bool,
    pub(super) listener: Option<Arc<TcpListener>>,
    pub(super) listen_on: ListenOn,
    pub(super) listen_also_on: Vec<IpAddr>,
    pub(super) connect_options: ConnectOptions,
    pub(super) server_options: ServerOptions,
    pub(super) limits: WireLimits,
    pub(super) reply_bytes_max: usize,
    pub(super) credentials: Option<Credentials>,
    pub(super) resume: Option<Duration>,
    pub(super) reconnects: bool,
    pub(super) lookup: Option<Arc<dyn Lookup>>,
    pub(super) cancel: Cancel,
}

/// The addresses on which a master listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ListenOn {
    /// The addresses of the store's host name, if this machine has them. A name that cannot be looked up is an error,
    /// unless there are [further addresses](TcpStoreOptions::with_listen_also_on). All interfaces, with a warning, if
    /// this machine has none of the addresses, or if the name resolves to a loopback address here and may resolve to
    /// another address elsewhere. (PyTorch always listens on all interfaces, which has exposed stores to untrusted
    /// networks: CVE-2025-47277.)
    #[default]
    Host,
    /// Like [`Host`](Self::Host), but all interfaces, with a warning, if the name cannot be looked up here. A
    /// launcher needs this if only the other nodes can resolve its name.
    HostIfKnown,
    /// Every address of the machine, IPv4 and IPv6.
    AllInterfaces,
    /// Only this address.
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
            listen_also_on: Vec::new(),
            connect_options: ConnectOptions::default(),
            server_options: ServerOptions::default(),
            limits: WireLimits::default(),
            reply_bytes_max: 1 << 30,
            credentials: None,
            resume: None,
            reconnects: false,
            lookup: None,
            cancel: Cancel::NEVER,
        }
    }
}

impl TcpStoreOptions {
    /// Sets the number of workers, at least 1. Default: none, and workers are not counted.
    pub const fn with_world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Connects only to a server that has the same secret, or a certificate of the same authority for the host's name.
    /// A master's server serves only such clients, unless its own options have credentials.
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets the credentials to a shared secret: see [`with_credentials`](Self::with_credentials).
    #[cfg(feature = "tls")]
    pub fn with_secret(self, secret: c10d_socket::Secret) -> Self {
        self.with_credentials(secret.into())
    }

    /// Survives a lost connection: a call that finds it lost connects again and continues, and every request takes
    /// effect exactly once. Calls keep their timeouts. A store that cannot connect for `timeout` after the loss was
    /// noticed fails permanently. A store whose server was restarted without a journal also fails permanently,
    /// because that server is another, empty store. Default: none, and a lost connection is final, like in PyTorch.
    ///
    /// The server removes a client that has been without a connection for `timeout`, or for its
    /// [`with_session_timeout`](ServerOptions::with_session_timeout) if that is shorter: a store that makes no call
    /// for that long after a loss fails with its next call. A server of PyTorch has no sessions, so this has no
    /// effect there.
    #[cfg(feature = "extensions")]
    pub const fn with_resume(mut self, timeout: Duration) -> Self {
        self.resume = Some(timeout);
        self
    }

    /// Connects again after a lost connection, to any server. Default: a lost connection is permanent. Together with
    /// [`with_resume`](Self::with_resume), this takes effect once resuming has failed.
    ///
    /// The server may have been restarted and be another, empty store. The caller must detect that, for example with
    /// a key that is always present.
    ///
    /// - A call that may be carried out twice is repeated until its timeout: a read, a wait for keys, and
    ///   [`compare_set`](crate::StoreExt::compare_set). A repeated `compare_set` that finds `desired` reports
    ///   [`swapped`](crate::CompareSet::swapped) as `None`. (If another client changes the value back to `expected` between the two
    ///   requests, it is written twice.)
    /// - Any other call under way fails with [`StoreError::ConnectionLost`](crate::StoreError::ConnectionLost), with the
    ///   outcome: a write, `add`, a barrier, a call that takes from a queue. The next call connects, until its
    ///   timeout.
    /// - Each write waits until the server has carried it out, so that none is lost after its `Ok`. This costs a round trip.
    /// - [Ephemeral keys](crate::StoreExt#ephemeral-keys) expire with their connection, and `keep_alive` reports it.
    pub const fn with_reconnect(mut self) -> Self {
        self.reconnects = true;
        self
    }

    /// Sets the [`Cancel`] that interrupts the opening and the later calls of the store. Default [`Cancel::NEVER`].
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sets whether this process hosts the server. Default false.
    pub const fn with_master(mut self, is_master: bool) -> Self {
        self.is_master = is_master;
        self
    }

    /// Sets the time limit for connecting, and the default timeout of later operations; `None` waits indefinitely.
    /// Default 300 s, like PyTorch. An operation that the server answers at once gets at least 250 ms, so that a
    /// timeout of zero checks once without waiting.
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets whether the master waits until all workers have joined. Default true, like PyTorch; has no effect without
    /// a world size.
    pub const fn with_wait_for_workers(mut self, wait: bool) -> Self {
        self.wait_for_workers = wait;
        self
    }

    /// Sets whether a master shares the server of an earlier multi-tenant master in this process on the same port
    /// instead of starting its own. Default false, like PyTorch.
    pub const fn with_multi_tenant(mut self, multi_tenant: bool) -> Self {
        self.multi_tenant = multi_tenant;
        self
    }

    /// Sets a bound socket for the master's server (PyTorch's `master_listen_fd`; an `OwnedFd` converts into a
    /// `TcpListener`). It must be bound to the store's port, unless that is 0. Default: none.
    pub fn with_listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// Sets the addresses on which a master listens. Default [`ListenOn::Host`].
    pub const fn with_listen_on(mut self, listen_on: ListenOn) -> Self {
        self.listen_on = listen_on;
        self
    }

    /// Further addresses on which a master listens with [`ListenOn::Host`] or [`ListenOn::HostIfKnown`]. An address that this machine does not have is
    /// skipped. With an address here that other machines can reach, a host name that leads to loopback is no reason to listen
    /// on all interfaces. Default: none.
    pub fn with_listen_also_on(mut self, addresses: Vec<IpAddr>) -> Self {
        self.listen_also_on = addresses;
        self
    }

    /// Sets the backoff and socket options of connections. Default [`ConnectOptions::default`].
    pub fn with_connect_options(mut self, options: ConnectOptions) -> Self {
        self.connect_options = options;
        self
    }

    /// Sets the options of a master's server. Default [`ServerOptions::default`].
    pub fn with_server_options(mut self, options: ServerOptions) -> Self {
        self.server_options = options;
        self
    }

    /// Sets the limits that the client checks before it sends. Default: the limits of PyTorch's server. A server
    /// closes the connection on a larger request, so raise them together with the server's limits.
    pub const fn with_limits(mut self, limits: WireLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the longest value, and the longest list of keys, that the client accepts from the server, in bytes.
    /// Default 1 GiB, since APPEND can make a value longer than the limit for one request.
    pub const fn with_reply_bytes_max(mut self, bytes: usize) -> Self {
        self.reply_bytes_max = bytes;
        self
    }
}
