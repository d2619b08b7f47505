//! What a server allows its peers.

use std::time::Duration;

use crate::limits::WireLimits;

/// The limits of a [`TcpStoreServer`](super::TcpStoreServer). Each has a default that no PyTorch
/// job comes near; each refusal is logged with the peer's address.
///
/// ```
/// use c10d_store::ServerOptions;
/// use std::time::Duration;
///
/// let options = ServerOptions::default()
///     .with_connections_max(4096)
///     .with_hello_timeout(Duration::from_secs(10));
/// assert_eq!(options.connections_max(), 4096);
/// ```
#[derive(Debug, Clone)]
pub struct ServerOptions {
    limits: WireLimits,
    unsent_bytes_max: usize,
    connections_max: usize,
    hello_timeout: Duration,
    world_size: Option<usize>,
    stall_report_after: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            limits: WireLimits::default(),
            unsent_bytes_max: 256 << 20,
            connections_max: 1 << 18,
            hello_timeout: Duration::from_secs(60),
            world_size: None,
            stall_report_after: Duration::from_secs(30),
        }
    }
}

impl ServerOptions {
    /// Limits on single requests.
    #[must_use]
    pub const fn limits(&self) -> &WireLimits {
        &self.limits
    }

    /// The most memory for reply bytes that wait for a peer which does not read them; the connection
    /// is closed at that point. Long before it, from 1 MiB on, the server stops carrying out the
    /// peer's further requests until it reads, so only one single reply can be that long. Values of
    /// 16 KiB and more are sent from where they are stored and do not count, so this is reached only
    /// by a listing or a MULTI_GET of very many short values. Default 256 MiB; PyTorch: no limit.
    #[must_use]
    pub const fn unsent_bytes_max(&self) -> usize {
        self.unsent_bytes_max
    }

    /// The most connections at a time; one more is accepted and closed at once. Default 262,144,
    /// so that in practice the system's limit on open files decides, as with PyTorch.
    #[must_use]
    pub const fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// How long a new connection may take to say a correct hello. Default 60 s, far above the
    /// slowest start seen and short enough that a port scanner's idle connections go away.
    /// PyTorch: for ever.
    #[must_use]
    pub const fn hello_timeout(&self) -> Duration {
        self.hello_timeout
    }

    /// How many workers the job has, if that is known. While fewer have joined, a wait that lasts is
    /// logged as a warning. Default: not known. No limit: more workers are served, too.
    #[must_use]
    pub const fn world_size(&self) -> Option<usize> {
        self.world_size
    }

    /// How long a connection waits for a key before the server logs who waits for what: as a warning
    /// while workers are missing, else for debugging only. The pauses between the lines grow from this
    /// time up to 10 min. Default 30 s: longer than workers of one job start apart.
    #[must_use]
    pub const fn stall_report_after(&self) -> Duration {
        self.stall_report_after
    }

    /// Changes [`world_size`](Self::world_size).
    #[must_use]
    pub const fn with_world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Changes [`stall_report_after`](Self::stall_report_after).
    #[must_use]
    pub const fn with_stall_report_after(mut self, after: Duration) -> Self {
        self.stall_report_after = after;
        self
    }

    /// Changes [`limits`](Self::limits).
    #[must_use]
    pub const fn with_limits(mut self, limits: WireLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Changes [`unsent_bytes_max`](Self::unsent_bytes_max).
    #[must_use]
    pub const fn with_unsent_bytes_max(mut self, bytes: usize) -> Self {
        self.unsent_bytes_max = bytes;
        self
    }

    /// Changes [`connections_max`](Self::connections_max).
    #[must_use]
    pub const fn with_connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections;
        self
    }

    /// Changes [`hello_timeout`](Self::hello_timeout).
    #[must_use]
    pub const fn with_hello_timeout(mut self, timeout: Duration) -> Self {
        self.hello_timeout = timeout;
        self
    }
}
