//! The TCPStore client.

mod add;
mod call;
mod change;
mod closer;
mod connection;
mod ephemeral;
mod explain;
mod lanes;
mod link;
mod listener_kind;
mod master;
mod operations;
mod options;
#[cfg(not(feature = "extensions"))]
mod plain;
mod pool;
mod queue_take;
#[cfg(feature = "extensions")]
mod resumed;
#[cfg(feature = "extensions")]
mod session_dialer;
#[cfg(feature = "extensions")]
mod session_lanes;
mod stream;
mod waiting;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectOptions, Credentials, Deadline, HostPort, ProcessBound, Protocol, sleep,
};

use crate::address::Lookup;
#[cfg(feature = "extensions")]
use crate::address::StoreAddress;
use crate::error::{ErrorContext, Operation, Outcome, StoreError};
use crate::server::TcpStoreServer;
use crate::store::StoreHandle;
use crate::wire::{ANNOUNCEMENT_BYTES_MAX, Opcode, WORKER_COUNT_KEY, capability};
use call::Transport;
use connection::Connection;
use explain::explain;
pub use link::ConnectionEnds;
pub use listener_kind::ListenerKind;
pub use options::{ListenOn, TcpStoreOptions};
#[cfg(not(feature = "extensions"))]
use plain as resumed;
use pool::{Pool, PoolOptions};
#[cfg(feature = "extensions")]
pub use {
    closer::Closer,
    link::SessionLink,
    session_dialer::{SILENCE_MAX, SessionDialer, SessionError},
};

/// How long a store with a directory follows its server: as long as a server remembers a session by default.
const RESUME_TIMEOUT: Duration = Duration::from_secs(600);

/// How often a master polls the worker count, like PyTorch.
const WORKER_COUNT_INTERVAL: Duration = Duration::from_millis(10);

/// A client of a TCPStore server (PyTorch's or this crate's), and optionally the host of the server.
///
/// Any number of threads may use one store. A call that waits for a key does not delay other calls: it *gives way*.
/// The thread of the other call wakes the waiting thread, which cancels its wait, lets the other call use the
/// connection, and repeats the wait with the remaining time. So a thread that waits and any number of threads whose
/// calls the server answers at once share one connection; each of their calls then takes about one round trip more.
/// The client opens another connection only for a second wait at the same time, and besides a wait that cannot be
/// repeated: a barrier, or a `wait` for several keys. It closes the additional connection after 10 s without use. If
/// a key is written and deleted again while the wait for it gives way, the wait continues. A thread's next call sees
/// its earlier writes.
///
/// Each connection takes a socket and a poller, two descriptors; on Linux, from the first wait of more than 1 ms on,
/// a third descriptor wakes the waiting thread.
///
/// A call blocks for at most its timeout, or 250 ms if that is longer, plus 0.2 s to cancel a wait and find the
/// missing keys. With PyTorch's server, `get`, `multi_get` and `queue_pop` fetch the value in a second request, which
/// may last until the store's timeout if that is later. This also holds if the server is stopped or cut off. The
/// store stays usable after a timeout. If the server closes the connection (it stopped, or it refused a request,
/// since the protocol has no error replies), the current and all later calls fail at once, because a restarted server
/// is a new, empty store. [`TcpStoreOptions::with_resume`] and [`TcpStoreOptions::with_reconnect`] change that.
///
/// A store belongs to the process that opened it. In a forked child every call fails at once with
/// [`StoreError::OtherProcess`], and dropping its copy closes nothing. The child must open another store.
///
/// The behaviour follows PyTorch's `TCPStore` (`torch/csrc/distributed/c10d/TCPStore.cpp`).
///
/// ```
/// use c10d_store::{ServerOptions, StoreExt, TcpStore, TcpStoreServer};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
/// let store = TcpStore::connect("127.0.0.1", server.local_addr().port())?;
/// store.set("answer", b"42")?;
/// assert_eq!(store.get("answer")?, b"42");
/// # Ok(())
/// # }
/// ```
///
/// A clone is the same handle: it shares the connections, the timeout and [`close`](Self::close). Use
/// [`clone_store`](crate::StoreHandle::clone_store) for another handle.
#[derive(Debug, Clone)]
pub struct TcpStore {
    handle: ProcessBound<Arc<Handle>>,
    cancel: Cancel,
}

/// The state that the values of [`StoreHandle::with_cancel`] share.
#[derive(Debug)]
struct Handle {
    transport: Transport,
    /// The server as the caller named it, with the port of a master's server.
    server_name: HostPort,
    connect_options: ConnectOptions,
    credentials: Option<Credentials>,
    reply_bytes_max: usize,
    resume: Option<Duration>,
    lookup: Option<Arc<dyn Lookup>>,
    /// The owner of ephemeral keys.
    owner: Mutex<Owner>,
    /// Declared last: the client's connections close before the server stops.
    server: Option<Arc<TcpStoreServer>>,
}

/// The store whose first connection owns the ephemeral keys of another store.
#[derive(Debug, Default)]
struct Owner {
    store: Option<TcpStore>,
    /// Whether its keys have expired with its connection since the last sign that this process is alive.
    was_lost: bool,
}

impl TcpStore {
    /// Connects to a server as a plain client with the default options. Retries for at most 300 s.
    ///
    /// # Errors
    /// [`StoreError::Connect`] if the server cannot be reached, [`StoreError::Protocol`] if the peer is
    /// not a TCPStore server.
    pub fn connect(host: &str, port: u16) -> Result<Self, StoreError> {
        Self::open(host, port, TcpStoreOptions::default())
    }

    /// Opens a store like PyTorch's constructor: starts the server on a master, connects and, with a world size,
    /// counts the workers; the master waits until all have joined. Blocks for at most the [timeout of the
    /// options](TcpStoreOptions::with_timeout).
    ///
    /// For port 0 on a master the system chooses the [`port`](Self::port).
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect); [`StoreError::Listen`] and [`StoreError::Server`] if a master cannot
    /// start the server, [`StoreError::WorkersMissing`] if not all workers joined in time,
    /// [`StoreError::InvalidArgument`] for a world size of 0.
    pub fn open(host: &str, port: u16, mut options: TcpStoreOptions) -> Result<Self, StoreError> {
        let started = Instant::now();
        let deadline = Deadline::after(started, options.timeout);
        let target = HostPort::new(host, port);
        if options.world_size == Some(0) {
            return Err(StoreError::InvalidArgument {
                context: ErrorContext::new(Operation::Open, [], label_of(&target), Duration::ZERO),
                detail: "the world size must be at least 1".to_owned(),
            });
        }
        let server = if options.is_master {
            let server = master::start(&target, &mut options, deadline);
            Some(server.map_err(|error| match error {
                StoreError::Listen(_) if options.cancel.is_cancelled() => {
                    let (label, elapsed) = (label_of(&target), started.elapsed());
                    let context = ErrorContext::new(Operation::Open, [], label, elapsed);
                    StoreError::interrupted(context, Outcome::NotSent)
                }
                error => error,
            })?)
        } else {
            None
        };
        let (target, address) = match &server {
            Some(server) => {
                let address = master::address_from_here(server);
                let named = HostPort::new(host, address.port());
                (
                    named,
                    HostPort::new(address.ip().to_string(), address.port()),
                )
            }
            None => (target.clone(), target),
        };
        let store = Self::connect_to(target, address, &options, deadline, server)?;
        if let Some(world_size) = options.world_size.filter(|_| options.wait_for_workers) {
            store.join_workers(world_size, started, deadline)?;
        }
        Ok(store)
    }

    /// Returns the server's host, as passed to [`open`](Self::open). PyTorch's `TCPStore.host`. For an address that
    /// is looked up, it is [`Lookup::name`](crate::Lookup::name), with the port 0.
    #[must_use]
    pub fn host(&self) -> &str {
        self.handle().server_name.host()
    }

    /// Returns the server's port; for a master opened with port 0, the port that the system chose.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.handle().server_name.port()
    }

    /// Returns the server, if this store is a master. It stops when the last store that shares it is dropped.
    #[must_use]
    pub fn server(&self) -> Option<&TcpStoreServer> {
        self.handle().server.as_deref()
    }

    /// Returns the addresses of the two ends of the store's first connection, or `None` if the system reported none.
    /// With an [address that is looked up](Self::open_at), the server may have moved since. Does not block.
    #[must_use]
    pub fn connection_ends(&self) -> Option<ConnectionEnds> {
        self.handle().transport.pool.ends()
    }

    /// Measures a round trip to the server. Blocks for at most the store's timeout.
    ///
    /// # Errors
    /// [`StoreError::NoReply`] if the server does not answer in time, [`StoreError::ConnectionLost`],
    /// or [`StoreError::Closed`].
    pub fn ping(&self) -> Result<Duration, StoreError> {
        let call = self.call_of(Operation::Ping);
        let sent = Instant::now();
        call.ask(
            |request| {
                request.mark();
            },
            Connection::read_mark,
        )?;
        Ok(sent.elapsed())
    }

    /// Announces information about this client to the server's observers, for example a launcher's workers
    /// ([`Snapshot::announcements`](crate::Snapshot::announcements)). The announcement replaces the previous
    /// announcement of the same connection and is removed with the connection, so use a separate store for it,
    /// without waiting calls. Returns `false` without sending anything if the server does not support it, like
    /// PyTorch's server. Blocks for at most the store's timeout. When it returns, the server may not have carried it
    /// out yet, like for a `set`.
    ///
    /// # Errors
    /// The errors of [`multi_set`](crate::Store::multi_set); [`StoreError::LimitExceeded`] for more than 256 KiB.
    pub fn announce(&self, bytes: &[u8]) -> Result<bool, StoreError> {
        let call = self.call_of(Operation::Announce);
        if bytes.len() > ANNOUNCEMENT_BYTES_MAX {
            let limit = ANNOUNCEMENT_BYTES_MAX;
            return Err(call.limit_exceeded("announcement bytes", bytes.len(), limit));
        }
        let mut lease = call.lease(self.timeout())?;
        if !lease.has(capability::ANNOUNCE) {
            return Ok(false);
        }
        call.tell_on(&mut lease, |request| {
            request.opcode(Opcode::Announce).value(bytes);
        })?;
        Ok(true)
    }

    /// [`StoreHandle::with_cancel`] that returns a `TcpStore`: the same handle, whose calls `cancel` interrupts.
    #[must_use]
    pub fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self {
            handle: self.handle.clone(),
            cancel: cancel.clone(),
        }
    }

    /// Closes the store's connections: its calls in progress in other threads fail at once with
    /// [`StoreError::Closed`], and so do all later calls. Clones continue, and a hosted server runs until the store
    /// is dropped. Does not block.
    pub fn close(&self) {
        let Ok(handle) = self.handle.get() else {
            return;
        };
        handle.transport.pool.close();
        if let Some(owner) = self.known_owner() {
            owner.close();
        }
    }

    /// In a forked child, the pool refuses what needs a lock or a connection.
    fn handle(&self) -> &Handle {
        self.handle.get_anywhere()
    }

    fn check_not_closed(&self) -> Result<(), StoreError> {
        let context = || ErrorContext::new(Operation::Open, [], self.label(), Duration::ZERO);
        let result = self.handle().transport.pool.check_not_closed();
        result.map_err(|error| explain(error, context(), self.timeout()))
    }

    /// Like [`clone_store`](StoreHandle::clone_store), connected by this deadline.
    fn clone_by(&self, deadline: Deadline, reconnects: bool) -> Result<Self, StoreError> {
        let timeout = self.timeout();
        let mut options = TcpStoreOptions::default()
            .with_timeout(timeout)
            .with_limits(self.handle().transport.limits)
            .with_connect_options(self.handle().connect_options.clone())
            .with_reply_bytes_max(self.handle().reply_bytes_max)
            .with_cancel(self.cancel.clone());
        options.credentials.clone_from(&self.handle().credentials);
        options.resume = self.handle().resume;
        options.reconnects = reconnects;
        options.lookup.clone_from(&self.handle().lookup);
        let address = self.handle().transport.pool.target().clone();
        Self::connect_to(
            self.handle().server_name.clone(),
            address,
            &options,
            deadline,
            None,
        )
    }

    fn connect_to(
        server_name: HostPort,
        address: HostPort,
        options: &TcpStoreOptions,
        deadline: Deadline,
        server: Option<Arc<TcpStoreServer>>,
    ) -> Result<Self, StoreError> {
        let started = Instant::now();
        let label = match &options.lookup {
            Some(lookup) => format!("TCP store {}", lookup.name()),
            None => label_of(&server_name),
        };
        let context = || ErrorContext::new(Operation::Open, [], label.clone(), started.elapsed());
        let credentials = options.credentials.as_ref();
        let tls = credentials.map(|it| it.client(Protocol::Store, server_name.host()));
        let pool = Pool::open(
            address,
            PoolOptions {
                connect_options: options.connect_options.clone(),
                tls: tls.transpose()?,
                credentials: options.credentials.clone(),
                reply_bytes_max: options.reply_bytes_max,
                resume: options.resume,
                reconnects: options.reconnects,
                lookup: options.lookup.clone(),
            },
            deadline,
            &options.cancel,
        )
        .map_err(|error| explain(error, context(), options.timeout))?;
        Ok(Self {
            handle: ProcessBound::new(Arc::new(Handle {
                transport: Transport::new(pool, label, options.limits, options.timeout),
                server_name,
                connect_options: options.connect_options.clone(),
                credentials: options.credentials.clone(),
                reply_bytes_max: options.reply_bytes_max,
                resume: options.resume,
                lookup: options.lookup.clone(),
                owner: Mutex::default(),
                server,
            })),
            cancel: options.cancel.clone(),
        })
    }

    /// Counts this process as a joined worker and returns how many have joined (docs/spec/wire.md, 7.2).
    /// [`open`](Self::open) does this for a store with a world size. Blocks for at most the store's
    /// timeout.
    ///
    /// # Errors
    /// The errors of [`add`](crate::Store::add).
    pub fn count_worker(&self) -> Result<i64, StoreError> {
        self.add_workers(1)
    }

    /// Returns the number of workers that have joined. Blocks for at most the store's timeout.
    ///
    /// # Errors
    /// The errors of [`add`](crate::Store::add).
    pub fn worker_count(&self) -> Result<i64, StoreError> {
        self.add_workers(0)
    }

    fn add_workers(&self, delta: i64) -> Result<i64, StoreError> {
        let call = self.call_of(Operation::Open);
        call.ask(
            |request| {
                request
                    .opcode(Opcode::Add)
                    .raw_key(WORKER_COUNT_KEY)
                    .i64(delta);
            },
            Connection::read_i64,
        )
    }

    /// docs/spec/wire.md, 7.2: every worker counts itself, and the host of the server waits for the other workers.
    fn join_workers(
        &self,
        world_size: usize,
        started: Instant,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let mut joined = self.count_worker()?;
        if self.handle().server.is_none() {
            return Ok(());
        }
        let expected = i64::try_from(world_size).unwrap_or(i64::MAX);
        while joined < expected {
            let now = Instant::now();
            if deadline.has_passed(now) {
                return Err(StoreError::WorkersMissing {
                    context: ErrorContext::new(
                        Operation::Open,
                        [],
                        self.label(),
                        now.duration_since(started),
                    ),
                    joined,
                    world_size,
                });
            }
            let left = deadline.remaining(now).unwrap_or(WORKER_COUNT_INTERVAL);
            if sleep(left.min(WORKER_COUNT_INTERVAL), [&self.cancel]).is_err() {
                let elapsed = started.elapsed();
                let context = ErrorContext::new(Operation::Open, [], self.label(), elapsed);
                // This worker stays counted.
                return Err(StoreError::interrupted(context, Outcome::Unknown));
            }
            joined = self.worker_count()?;
        }
        Ok(())
    }
}

#[cfg(feature = "extensions")]
impl TcpStore {
    /// Connects to the store at this address, as a client. If the address is a directory, the store follows the
    /// leader: when another process takes over, the store continues there like after a lost connection, see
    /// [`TcpStoreOptions::with_resume`], whose default is 10 min here. It blocks as long as [`open`](Self::open).
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_at(
        address: &StoreAddress,
        mut options: TcpStoreOptions,
    ) -> Result<Self, StoreError> {
        let target = match address {
            StoreAddress::At(target) => target.clone(),
            StoreAddress::LookedUp(lookup) => {
                options.is_master = false;
                options.resume.get_or_insert(RESUME_TIMEOUT);
                options.lookup = Some(Arc::clone(lookup));
                HostPort::new(lookup.name(), 0)
            }
        };
        Self::open(target.host(), target.port(), options)
    }
}

fn label_of(server_name: &HostPort) -> String {
    format!("TCP store {server_name}")
}
