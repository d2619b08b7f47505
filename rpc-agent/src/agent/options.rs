//! How an agent is set up.

use std::time::Duration;

use c10d_socket::SocketOptions;

use crate::fault::FaultPlan;
use crate::runtime::CallTimeout;

/// How an agent is set up: who it is, in which group, and its limits. All but the name and the rank
/// has a default.
///
/// ```
/// use rpc_agent::AgentOptions;
/// use std::time::Duration;
///
/// let options = AgentOptions::new("trainer:0", 0)
///     .with_world_size(4)
///     .with_timeout(Duration::from_secs(30));
/// # let _ = options;
/// ```
#[derive(Debug, Clone)]
pub struct AgentOptions {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) world_size: Option<u32>,
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
    pub(crate) advertised_host: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) start_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) handler_threads: usize,
    pub(crate) threads_max: usize,
    pub(crate) message_bytes_max: u64,
    pub(crate) backlog_bytes_max: u64,
    pub(crate) requests_queued_max: usize,
    pub(crate) socket: SocketOptions,
    pub(crate) seed: Option<u64>,
    pub(crate) faults: Option<FaultPlan>,
}

impl AgentOptions {
    /// A worker of this name and rank, in a group whose members come and go; see
    /// [`AgentOptions::with_world_size`].
    #[must_use]
    pub fn new(name: impl Into<String>, rank: u32) -> Self {
        Self {
            name: name.into(),
            rank,
            world_size: None,
            host: None,
            port: 0,
            advertised_host: None,
            timeout: Some(Duration::from_secs(60)),
            start_timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(10),
            handler_threads: 16,
            threads_max: 256,
            message_bytes_max: 256 << 20,
            backlog_bytes_max: 512 << 20,
            requests_queued_max: 65_536,
            socket: SocketOptions::default(),
            seed: None,
            faults: None,
        }
    }

    /// A group of this many workers, ranks 0 to `world_size - 1`, that start together and end together.
    #[must_use]
    pub fn with_world_size(mut self, world_size: u32) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// The host name or address to listen on. Default: all interfaces.
    #[must_use]
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// The port to listen on. Default 0: one that is free.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The host that the others are told to connect to. Default: the host listened on or, on all
    /// interfaces, the address from which this machine reaches others, or else 127.0.0.1 with a warning.
    #[must_use]
    pub fn with_advertised_host(mut self, host: impl Into<String>) -> Self {
        self.advertised_host = Some(host.into());
        self
    }

    /// How long a call may take that has no timeout of its own; `None` for no limit. Default 60 s, as PyTorch. In
    /// PyTorch zero means no limit; here a call with a timeout of zero expires at once.
    #[must_use]
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// How long the start may take: the others' arrival. Default 300 s, the default of a store.
    #[must_use]
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// For how long a worker is dialed, from the first attempt on, before the calls that wait for the
    /// connection fail. Default 10 s. A refused connection fails at once: a worker listens from before its
    /// address is known until it ends.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How many functions run at a time, at least 1; those that wait for calls of their own are not
    /// counted. Default 16, as PyTorch.
    #[must_use]
    pub fn with_handler_threads(mut self, threads: usize) -> Self {
        self.handler_threads = threads.max(1);
        self
    }

    /// How many threads there may be, those that wait for nested calls included. Threads are started as
    /// they are needed. When all wait, a further request is refused, as waiting could be for ever.
    /// Default 256.
    #[must_use]
    pub fn with_threads_max(mut self, threads: usize) -> Self {
        self.threads_max = threads.max(1);
        self
    }

    /// The greatest request or answer, in bytes, sent or received. Default 256 MiB.
    #[must_use]
    pub fn with_message_bytes_max(mut self, bytes: u64) -> Self {
        self.message_bytes_max = bytes;
        self
    }

    /// How many bytes may wait to be sent to one worker; a call beyond that fails at once, and requests
    /// of that worker wait. Default 512 MiB.
    #[must_use]
    pub fn with_backlog_bytes_max(mut self, bytes: u64) -> Self {
        self.backlog_bytes_max = bytes;
        self
    }

    /// How many requests of one worker may wait for a thread; those beyond are refused. Default 65,536.
    #[must_use]
    pub fn with_requests_queued_max(mut self, requests: usize) -> Self {
        self.requests_queued_max = requests;
        self
    }

    /// TCP options of all connections.
    #[must_use]
    pub fn with_socket_options(mut self, socket: SocketOptions) -> Self {
        self.socket = socket;
        self
    }

    /// The seed of everything random here: the incarnation, jitter. Default: one from the system.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Faults to inject, for tests.
    #[must_use]
    pub fn with_faults(mut self, faults: FaultPlan) -> Self {
        self.faults = Some(faults);
        self
    }
}

/// How one call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallOptions {
    pub(crate) timeout: CallTimeout,
}

impl CallOptions {
    /// How long the call may take; `None` for no limit. Default: [`AgentOptions::with_timeout`].
    #[must_use]
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = CallTimeout::Own(timeout.into());
        self
    }
}
