//! Options of agents.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use c10d_socket::{Cancel, Credentials, SocketOptions};

use crate::error::CallMessage;
use crate::worker::WorkerId;

/// Configuration of an agent: its name and rank, its group, timeouts and limits.
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
#[must_use]
pub struct AgentOptions {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) world_size: Option<u32>,
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
    pub(crate) advertised_host: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) start_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) handler_threads: usize,
    pub(crate) threads_max: usize,
    pub(crate) message_bytes_max: u64,
    pub(crate) backlog_bytes_max: u64,
    pub(crate) requests_queued_max: usize,
    pub(crate) socket: SocketOptions,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) seed: Option<u64>,
    pub(crate) faults: Option<Arc<dyn FaultInjector>>,
    pub(crate) cancel: Cancel,
}

impl AgentOptions {
    /// Creates the default options for a worker in a dynamic group, which workers join and leave at any time.
    ///
    /// For a group of fixed size, see [`AgentOptions::with_world_size`].
    pub fn new(name: impl Into<String>, rank: u32) -> Self {
        Self {
            name: name.into(),
            rank,
            world_size: None,
            host: None,
            port: 0,
            advertised_host: None,
            timeout: Some(Duration::from_secs(60)),
            start_timeout: Some(Duration::from_secs(300)),
            connect_timeout: Duration::from_secs(10),
            handler_threads: 16,
            threads_max: 256,
            message_bytes_max: 256 << 20,
            backlog_bytes_max: 512 << 20,
            requests_queued_max: 65_536,
            socket: SocketOptions::default(),
            credentials: None,
            seed: None,
            faults: None,
            cancel: Cancel::NEVER,
        }
    }

    /// Replaces the name and the rank.
    pub fn with_worker(mut self, name: impl Into<String>, rank: u32) -> Self {
        self.name = name.into();
        self.rank = rank;
        self
    }

    /// Sets a fixed group size: ranks 0 to `world_size - 1` start together and shut down together.
    pub fn with_world_size(mut self, world_size: u32) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Removes a fixed group size: workers join and leave at any time, which is the default of [`AgentOptions::new`].
    pub fn without_world_size(mut self) -> Self {
        self.world_size = None;
        self
    }

    /// Sets the host name or address to listen on. Default: all interfaces.
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Sets the port to listen on. Default 0: the system selects a free port.
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets the host that other workers connect to. Default: the host of [`AgentOptions::with_host`].
    ///
    /// Without either, the agent advertises the local address that this machine uses to reach other machines. If
    /// there is none, it advertises 127.0.0.1 and logs a warning.
    pub fn with_advertised_host(mut self, host: impl Into<String>) -> Self {
        self.advertised_host = Some(host.into());
        self
    }

    /// Sets the timeout of calls without an explicit timeout; `None` for no limit. Default 60 s, like PyTorch.
    ///
    /// In PyTorch zero means no limit; here a call with a timeout of zero expires at once.
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets the time limit of the start, which waits for the other workers; `None` for no limit. Default 300 s, the
    /// default of a store.
    pub fn with_start_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.start_timeout = timeout.into();
        self
    }

    /// Sets the time limit for connecting to a worker, all attempts included. Default 10 s.
    ///
    /// After that, calls that wait for the connection fail. If the connection is refused they fail at once, because a
    /// worker listens before it publishes its address, and until it exits.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how many functions run concurrently, at least 1. Default 16, like PyTorch.
    ///
    /// Functions that wait for nested calls are not counted.
    pub fn with_handler_threads(mut self, threads: usize) -> Self {
        self.handler_threads = threads.max(1);
        self
    }

    /// Sets the most handler threads, including threads that wait for nested calls. Default 256.
    ///
    /// Threads start on demand. When all of them wait, the agent refuses further requests to prevent a
    /// deadlock.
    pub fn with_threads_max(mut self, threads: usize) -> Self {
        self.threads_max = threads.max(1);
        self
    }

    /// Sets the size limit of a request or response, sent or received, in bytes. Default 256 MiB.
    pub fn with_message_bytes_max(mut self, bytes: u64) -> Self {
        self.message_bytes_max = bytes;
        self
    }

    /// Sets the size limit of the send queue to a worker, in bytes. Default 512 MiB.
    ///
    /// When it is full, calls to that worker fail at once, and requests from it wait.
    pub fn with_backlog_bytes_max(mut self, bytes: u64) -> Self {
        self.backlog_bytes_max = bytes;
        self
    }

    /// Sets how many requests of one worker may be queued; the agent refuses further requests. Default 65,536.
    pub fn with_requests_queued_max(mut self, requests: usize) -> Self {
        self.requests_queued_max = requests;
        self
    }

    /// Sets the TCP options of all connections. Default [`SocketOptions::default`].
    pub fn with_socket_options(mut self, socket: SocketOptions) -> Self {
        self.socket = socket;
        self
    }

    /// Connects only with workers that have the same secret, or a certificate of the same authority: all other
    /// connections are closed at once. All workers of the group need them. Default: none.
    ///
    /// With certificates, a worker's certificate must have the name or address that it advertises: see
    /// [`AgentOptions::with_advertised_host`].
    #[cfg(feature = "tls")]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Returns whether the agent connects only with workers that have its credentials.
    #[must_use]
    pub const fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// Sets the credentials to a shared secret: see [`AgentOptions::with_credentials`].
    #[cfg(feature = "tls")]
    pub fn with_secret(self, secret: c10d_socket::Secret) -> Self {
        self.with_credentials(secret.into())
    }

    /// Sets the [`Cancel`] that interrupts the start, and the waits of [`Agent::join`](crate::Agent::join) and
    /// [`Agent::shutdown`](crate::Agent::shutdown). Default [`Cancel::NEVER`].
    ///
    /// To interrupt a wait for a call, use [`RpcFuture::wait_until`](crate::RpcFuture::wait_until).
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sets the seed of the incarnation and of jitter. Default: a random seed from the system.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Injects faults into the messages that this agent sends, for tests. Default: none.
    pub fn with_faults(mut self, faults: impl FaultInjector + 'static) -> Self {
        self.faults = Some(Arc::new(faults));
        self
    }
}

/// A fault to inject into one message, for tests. Without a fault, a message is sent once and at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is not sent, and its call fails with [`NotSent::Injected`](crate::NotSent::Injected). An answer is
    /// lost.
    Fail,
    /// The message is sent in another way: late, several times or never, or its connection is closed.
    Send {
        /// The number of copies that are sent. A lost request (0) counts as sent.
        copies: u32,
        /// The delay; the sender does not wait.
        after: Duration,
        /// Whether the connection is closed afterwards.
        cuts: bool,
    },
}

/// Decides which messages of an agent have a fault, for tests: see
/// [`AgentOptions::with_faults`](crate::AgentOptions::with_faults).
pub trait FaultInjector: fmt::Debug + Send + Sync {
    /// Returns the fault of a message that is about to be sent, or `None`. It is called for each send, and thus for
    /// each attempt of a call with retries. `function` is the name of the called function. Must not block.
    fn decide(
        &self,
        message: CallMessage,
        function: &str,
        to: WorkerId,
        payload: &[u8],
    ) -> Option<Fault>;
}
