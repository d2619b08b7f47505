//! Options of a relay.

use std::time::Duration;

use c10d_socket::Credentials;
use c10d_store::{ConnectOptions, KeepAlive, SocketOptions, WireLimits};

/// Longer than a network path usually takes to change, and short beside the timeouts of ranks.
const LOSS_NOTICED_AFTER: Duration = Duration::from_secs(20);

/// Options of a [`Relay`](crate::Relay).
///
/// ```
/// use c10d_relay::RelayOptions;
/// use std::time::Duration;
///
/// let options = RelayOptions::default().with_resume_timeout(Duration::from_secs(60));
/// assert_eq!(options.resume_timeout(), Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RelayOptions {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) connect_options: ConnectOptions,
    pub(crate) limits: WireLimits,
    resume_timeout: Duration,
    refused_timeout: Duration,
    handshake_timeout: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            credentials: None,
            connect_options: ConnectOptions::default().with_socket_options(
                SocketOptions::default()
                    .with_keep_alive(Some(
                        KeepAlive::default()
                            .with_idle(LOSS_NOTICED_AFTER / 2)
                            .with_interval(LOSS_NOTICED_AFTER / 4)
                            .with_probes(2),
                    ))
                    .with_user_timeout(LOSS_NOTICED_AFTER),
            ),
            limits: WireLimits::default(),
            resume_timeout: Duration::from_secs(600),
            refused_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(60),
        }
    }
}

impl RelayOptions {
    /// Returns how long the relay tries to reach the store, at first and after a loss, before it closes the
    /// connections of its ranks. The store drops the relay's session after the same time, or after its
    /// `ServerOptions::with_session_timeout` if that is shorter. Default 10 min.
    #[must_use]
    pub const fn resume_timeout(&self) -> Duration {
        self.resume_timeout
    }

    /// Sets how long the relay tries to reach the store: see [`resume_timeout`](Self::resume_timeout).
    pub const fn with_resume_timeout(mut self, timeout: Duration) -> Self {
        self.resume_timeout = timeout;
        self
    }

    /// Returns how long the store's machine may refuse connections, after a loss, before the relay closes the
    /// connections of its ranks: nothing listens on the port, so the store has exited. A store with a journal must be
    /// restarted before that to continue. Default 30 s: longer than a firewall or a load balancer in between usually
    /// takes to change.
    #[must_use]
    pub const fn refused_timeout(&self) -> Duration {
        self.refused_timeout
    }

    /// Sets how long the store's machine may refuse connections: see [`refused_timeout`](Self::refused_timeout).
    pub const fn with_refused_timeout(mut self, timeout: Duration) -> Self {
        self.refused_timeout = timeout;
        self
    }

    /// Returns the time limit for the handshake of a new connection; [`Duration::MAX`] for none. Default 60 s, like
    /// `c10d_store::ServerOptions`.
    #[must_use]
    pub const fn handshake_timeout(&self) -> Duration {
        self.handshake_timeout
    }

    /// Sets the time limit for the handshake of a new connection: see [`handshake_timeout`](Self::handshake_timeout).
    pub const fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Connects only to a store that has the same secret, or a certificate of the same authority for its name.
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets the credentials to a shared secret: see [`with_credentials`](Self::with_credentials).
    #[cfg(feature = "tls")]
    pub fn with_secret(self, secret: c10d_store::Secret) -> Self {
        self.with_credentials(secret.into())
    }

    /// Sets the backoff and socket options of the connection to the store. Default [`ConnectOptions::default`], but a
    /// store whose machine does not answer for 20 s counts as lost, so that the relay tries another connection.
    pub fn with_connect_options(mut self, options: ConnectOptions) -> Self {
        self.connect_options = options;
        self
    }

    /// Sets the limits on the requests of a rank. Default [`WireLimits::default`], the limits of PyTorch's server.
    pub const fn with_limits(mut self, limits: WireLimits) -> Self {
        self.limits = limits;
        self
    }
}
