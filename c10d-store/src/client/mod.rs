//! The TCPStore client.

mod connection;
mod lanes;
mod master;
mod options;
mod pool;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{ConnectOptions, Deadline, HostPort};

use crate::decimal::parse_decimal;
use crate::error::{ErrorContext, Operation, Outcome, StoreError};
use crate::limits::WireLimits;
use crate::server::TcpStoreServer;
use crate::store::Store;
use crate::wire::{CHECK_NOT_READY, CHECK_READY, Opcode, RequestBuf};
use connection::{Connection, Failure, Follows, Waited};
pub use options::{ListenOn, TcpStoreOptions};
use pool::{Ended, Lease, Pool, PoolError};

/// The key under which workers are counted; the only one without the `/` (docs/wire.md, 7.2).
const WORKER_COUNT_KEY: &[u8] = b"init/";

/// How often a master looks whether all workers have joined, as PyTorch's.
const WORKER_COUNT_INTERVAL: Duration = Duration::from_millis(10);

/// What an operation gets that the server answers at once, even if the timeout is shorter.
const ANSWER_TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// After a timeout so long is spent at most on finding out what was missing, and for so many keys.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_millis(100);
const DIAGNOSED_KEYS_MAX: usize = 1024;

/// A client of a TCPStore server, PyTorch's or this crate's, and optionally its host.
///
/// Any number of threads may use one store: a call that waits for a key holds up no other call, for
/// which a further connection is opened when it is needed. What a thread has written, its next call
/// sees.
///
/// No call outlives its timeout by more than the 0.2 s in which a wait is cancelled and its missing
/// keys are found out, also when the
/// server is stopped or cut off; a store stays usable after a timeout. When the server closes the
/// connection (it died, or it refused a request, for which the wire has no other answer) every call
/// fails at once, and so do all later ones: a server that comes back is another, empty store.
///
/// The behaviour follows PyTorch's `TCPStore` (`torch/csrc/distributed/c10d/TCPStore.cpp`).
///
/// ```
/// use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
/// let store = TcpStore::connect("127.0.0.1", server.local_addr().port())?;
/// store.set("answer", b"42")?;
/// assert_eq!(store.get("answer")?, b"42");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TcpStore {
    pool: Pool,
    label: String,
    timeout: Mutex<Duration>,
    limits: WireLimits,
    connect_options: ConnectOptions,
    reply_bytes_max: usize,
    /// Declared last: the client's connections close before the server ends.
    server: Option<Arc<TcpStoreServer>>,
}

impl TcpStore {
    /// Connects to a server with the default options: a plain client, 300 s for everything.
    ///
    /// # Errors
    /// [`StoreError::Connect`] when the server cannot be reached, [`StoreError::Protocol`] when what
    /// answers is no TCPStore server.
    pub fn connect(host: &str, port: u16) -> Result<Self, StoreError> {
        Self::open(host, port, TcpStoreOptions::default())
    }

    /// Opens a store as PyTorch's constructor does: hosts the server if this is the master, connects,
    /// and, if a world size is given, counts the workers. Blocks for at most the options' timeout.
    ///
    /// A master with port 0 lets the system choose: see [`port`](Self::port).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`StoreError::Listen`] and [`StoreError::Server`] on a master
    /// that cannot host; [`StoreError::WorkersMissing`] when not all workers joined in time;
    /// [`StoreError::InvalidArgument`] for a world size of 0.
    pub fn open(
        host: &str,
        port: u16,
        mut options: TcpStoreOptions,
    ) -> Result<Self, StoreError> {
        let started = Instant::now();
        let deadline = Deadline::after(started, options.timeout);
        let target = HostPort::new(host, port);
        let label = |target: &HostPort| format!("TCP store {target}");
        if options.world_size == Some(0) {
            return Err(StoreError::InvalidArgument {
                context: ErrorContext::new(Operation::Open, [], label(&target), Duration::ZERO),
                detail: "the world size must be at least 1".to_owned(),
            });
        }
        let server = if options.is_master {
            Some(master::start(&target, &mut options, deadline)?)
        } else {
            None
        };
        let (target, address) = match &server {
            Some(server) => {
                let address = master::address_from_here(server);
                let named = HostPort::new(host, address.port());
                (named, HostPort::new(address.ip().to_string(), address.port()))
            }
            None => (target.clone(), target),
        };
        let store = Self::connect_to(label(&target), address, &options, deadline, server)?;
        if let Some(world_size) = options.world_size.filter(|_| options.wait_for_workers) {
            store.join_workers(world_size, started, deadline)?;
        }
        Ok(store)
    }

    /// The server's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.pool.target().port()
    }

    /// The server that this store hosts, if it is a master. It ends with the last store that holds
    /// it.
    #[must_use]
    pub fn server(&self) -> Option<&TcpStoreServer> {
        self.server.as_deref()
    }

    /// Sends a PING and returns the time until its answer.
    ///
    /// # Errors
    /// [`StoreError::NoReply`] when the server does not answer in time, or
    /// [`StoreError::ConnectionLost`].
    pub fn ping(&self) -> Result<Duration, StoreError> {
        const NONCE: u32 = 1;
        let call = Call::new(self, Operation::Ping, &[]);
        let sent = Instant::now();
        let answer = call.ask(
            |request| {
                request.opcode(Opcode::Ping).u32(NONCE);
            },
            Connection::read_u32,
        )?;
        if answer != NONCE {
            let detail = format!("PING was answered by 0x{answer:08x} instead of 0x{NONCE:08x}");
            return Err(call.protocol_error(detail));
        }
        Ok(sent.elapsed())
    }

    /// Ends the store's connections: calls that are under way in other threads fail at once with
    /// [`StoreError::Closed`], and so do all later ones. A hosted server goes on until the store is
    /// dropped.
    pub fn close(&self) {
        self.pool.close();
    }

    fn connect_to(
        label: String,
        address: HostPort,
        options: &TcpStoreOptions,
        deadline: Deadline,
        server: Option<Arc<TcpStoreServer>>,
    ) -> Result<Self, StoreError> {
        let started = Instant::now();
        let context =
            || ErrorContext::new(Operation::Open, [], label.clone(), started.elapsed());
        let pool = Pool::open(
            address,
            options.connect_options.clone(),
            options.reply_bytes_max,
            deadline,
        )
        .map_err(|error| explain(error, context(), options.timeout))?;
        Ok(Self {
            pool,
            label,
            timeout: Mutex::new(options.timeout),
            limits: options.limits,
            connect_options: options.connect_options.clone(),
            reply_bytes_max: options.reply_bytes_max,
            server,
        })
    }

    /// docs/wire.md, 7.2: everyone counts itself, the host of the server waits for the others.
    fn join_workers(
        &self,
        world_size: usize,
        started: Instant,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let count = |delta: i64| {
            let call = Call::new(self, Operation::Open, &[]);
            call.ask(
                |request| {
                    request.opcode(Opcode::Add).raw_key(WORKER_COUNT_KEY).i64(delta);
                },
                Connection::read_i64,
            )
        };
        let mut joined = count(1)?;
        if self.server.is_none() {
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
            thread::sleep(left.min(WORKER_COUNT_INTERVAL));
            joined = count(0)?;
        }
        Ok(())
    }

    fn check_limits<'k>(
        &self,
        call: &Call<'_>,
        keys: impl IntoIterator<Item = &'k str>,
        values: &[&[u8]],
    ) -> Result<(), StoreError> {
        let too_long = |what, actual, limit| StoreError::LimitExceeded {
            context: call.context(),
            what,
            actual,
            limit,
        };
        let mut count = 0;
        for key in keys {
            count += 1;
            // The `/` counts.
            let limit = self.limits.key_bytes_max().saturating_sub(1);
            if key.len() > limit {
                return Err(too_long("key bytes", key.len(), limit));
            }
        }
        let limit = self.limits.keys_per_request_max();
        if count > limit {
            return Err(too_long("keys in one request", count, limit));
        }
        for value in values {
            let limit = self.limits.value_bytes_max();
            if value.len() > limit {
                return Err(too_long("value bytes", value.len(), limit));
            }
        }
        Ok(())
    }

    /// A call about one key and some values, its limits checked.
    fn call<'c>(
        &'c self,
        operation: Operation,
        keys: &'c [&'c str],
        values: &[&[u8]],
    ) -> Result<Call<'c>, StoreError> {
        let call = Call::new(self, operation, keys);
        self.check_limits(&call, keys.iter().copied(), values)?;
        Ok(call)
    }
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.call(Operation::Set, &[key], &[value])?.tell(|request| {
            request.opcode(Opcode::Set).user_key(key).value(value);
        })
    }

    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let mut values = self
            .call(Operation::Get, &[key], &[])?
            .get_when_there(self.timeout())?;
        Ok(values.pop().unwrap_or_default())
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.call(Operation::Add, &[key], &[])?.ask(
            |request| {
                request.opcode(Opcode::Add).user_key(key).i64(delta);
            },
            Connection::read_i64,
        )
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        self.call(Operation::CompareSet, &[key], &[expected, desired])?
            .ask(
                |request| {
                    request.opcode(Opcode::CompareSet).user_key(key);
                    request.value(expected).value(desired);
                },
                Connection::read_blob,
            )
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let call = self.call(Operation::Check, keys, &[])?;
        let answer = call.ask(
            |request| {
                request.opcode(Opcode::Check).user_keys(keys);
            },
            Connection::read_u8,
        )?;
        match answer {
            CHECK_READY => Ok(true),
            CHECK_NOT_READY => Ok(false),
            other => Err(call.protocol_error(format!("CHECK was answered by 0x{other:02x}"))),
        }
    }

    fn wait_timeout(&self, keys: &[&str], timeout: Duration) -> Result<(), StoreError> {
        let call = self.call(Operation::Wait, keys, &[])?;
        let mut lease = call.lease()?;
        let waited = call.wait_on(&mut lease, timeout, Follows::Nothing, |request| {
            request.opcode(Opcode::Wait).user_keys(keys);
        })?;
        match waited {
            Waited::Done(_) => Ok(()),
            Waited::TimedOut => Err(call.timed_out(lease, timeout)),
        }
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        let deleted = self.call(Operation::DeleteKey, &[key], &[])?.ask(
            |request| {
                request.opcode(Opcode::DeleteKey).user_key(key);
            },
            Connection::read_i64,
        )?;
        Ok(deleted == 1)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        let call = Call::new(self, Operation::NumKeys, &[]);
        let count = call.ask(
            |request| {
                request.opcode(Opcode::GetNumKeys);
            },
            Connection::read_i64,
        )?;
        call.as_count(count)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.call(Operation::Append, &[key], &[value])?
            .tell(|request| {
                request.opcode(Opcode::Append).user_key(key).value(value);
            })
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.call(Operation::MultiGet, keys, &[])?
            .get_when_there(self.timeout())
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        let values: Vec<&[u8]> = pairs.iter().map(|(_, value)| *value).collect();
        self.call(Operation::MultiSet, &keys, &values)?
            .tell(|request| {
                request.opcode(Opcode::MultiSet).count(pairs.len());
                for (key, value) in pairs {
                    request.user_key(key).value(value);
                }
            })
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.call(Operation::QueuePush, &[key], &[value])?
            .tell(|request| {
                request.opcode(Opcode::QueuePush).user_key(key).value(value);
            })
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let timeout = self.timeout();
        let keys = [key];
        let call = self.call(Operation::QueuePop, &keys, &[])?;
        // Another worker can take the element between the two requests (and a value of the same name
        // ends the wait without any): then the wait goes on.
        let mut lease = call.lease()?;
        loop {
            let waited = call.wait_on(&mut lease, timeout, Follows::Nothing, |request| {
                request.opcode(Opcode::Wait).user_keys(&[key]);
            })?;
            let popped = call.pop_on(&mut lease, key)?;
            match (popped, waited) {
                (Some(element), _) => return Ok(element),
                (None, Waited::TimedOut) => return Err(call.timed_out(lease, timeout)),
                (None, Waited::Done(_)) if call.deadline(timeout).has_passed(Instant::now()) => {
                    return Err(StoreError::QueueEmpty {
                        context: call.context(),
                    });
                }
                // A value of that name makes every wait end at once: look again at leisure.
                (None, Waited::Done(_)) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let keys = [key];
        let call = self.call(Operation::QueuePop, &keys, &[])?;
        let mut lease = call.lease()?;
        call.pop_on(&mut lease, key)
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        let keys = [key];
        let call = self.call(Operation::QueueLen, &keys, &[])?;
        let length = call.ask(
            |request| {
                request.opcode(Opcode::QueueLen).user_key(key);
            },
            Connection::read_i64,
        )?;
        call.as_count(length)
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let call = Call::new(self, Operation::ListKeys, &[]);
        let keys = call.ask(
            |request| {
                request.opcode(Opcode::ListKeys);
            },
            |connection, deadline| {
                let count = connection.read_i64(deadline)?;
                let count = usize::try_from(count).map_err(|_| negative_count(count))?;
                connection.read_blobs(count, deadline)
            },
        )?;
        // docs/wire.md, 4.1: only users' keys start with the slash.
        let users = keys.iter().filter_map(|key| key.strip_prefix(b"/"));
        Ok(users
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect())
    }

    fn barrier(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        let timeout = timeout.unwrap_or_else(|| self.timeout());
        let keys = [key];
        let call = self.call(Operation::Barrier, &keys, &[])?;
        let world_size_on_wire = i64::try_from(world_size).unwrap_or(i64::MAX);
        let mut lease = call.lease()?;
        let waited = call.wait_on(&mut lease, timeout, Follows::Nothing, |request| {
            request.opcode(Opcode::Barrier).user_key(key);
            request.i64(world_size_on_wire);
        })?;
        match waited {
            Waited::Done(_) => Ok(()),
            Waited::TimedOut => Err(StoreError::BarrierTimeout {
                arrived: call.arrived_at_barrier(lease, key),
                context: call.context(),
                timeout,
                world_size,
            }),
        }
    }

    fn timeout(&self) -> Duration {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_timeout(&self, timeout: Duration) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// A new connection to the same server, with this store's present timeout. Does not keep a
    /// hosted server alive.
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        let timeout = self.timeout();
        let options = TcpStoreOptions::default()
            .with_timeout(timeout)
            .with_limits(self.limits)
            .with_connect_options(self.connect_options.clone())
            .with_reply_bytes_max(self.reply_bytes_max);
        let connect_timeout = timeout.max(ANSWER_TIMEOUT_MIN);
        let deadline = Deadline::after(Instant::now(), connect_timeout);
        let address = self.pool.target().clone();
        let clone = Self::connect_to(self.label(), address, &options, deadline, None)?;
        Ok(Arc::new(clone))
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn label(&self) -> String {
        self.label.clone()
    }
}

/// One call: what it is about and since when it goes on.
#[derive(Debug)]
struct Call<'c> {
    store: &'c TcpStore,
    operation: Operation,
    keys: &'c [&'c str],
    started: Instant,
}

impl<'c> Call<'c> {
    fn new(store: &'c TcpStore, operation: Operation, keys: &'c [&'c str]) -> Self {
        Self {
            store,
            operation,
            keys,
            started: Instant::now(),
        }
    }

    fn context(&self) -> ErrorContext {
        ErrorContext::new(
            self.operation,
            self.keys.iter().copied(),
            self.store.label(),
            self.started.elapsed(),
        )
    }

    fn deadline(&self, timeout: Duration) -> Deadline {
        Deadline::after(self.started, timeout)
    }

    /// The limit of what the server answers at once.
    fn answer_timeout(&self) -> Duration {
        self.store.timeout().max(ANSWER_TIMEOUT_MIN)
    }

    fn lease(&self) -> Result<Lease<'c>, StoreError> {
        let timeout = self.answer_timeout();
        self.store
            .pool
            .take(self.deadline(timeout))
            .map_err(|error| self.explain(error, timeout))
    }

    /// Sends a request that the server does not answer.
    fn tell<'v>(&self, build: impl FnOnce(&mut RequestBuf<'v>)) -> Result<(), StoreError> {
        let timeout = self.answer_timeout();
        let deadline = self.deadline(timeout);
        let mut lease = self.lease()?;
        let is_first_lane = lease.is_first_lane();
        lease
            .exchange(|connection| {
                let mut request = connection.new_request();
                build(&mut request);
                connection.tell(request, deadline)?;
                if is_first_lane {
                    Ok(())
                } else {
                    connection.acknowledge(deadline)
                }
            })
            .map_err(|error| self.explain(error, timeout))
    }

    /// Sends a request that the server answers at once, and reads the answer.
    fn ask<'v, T>(
        &self,
        build: impl FnOnce(&mut RequestBuf<'v>),
        read: impl FnOnce(&mut Connection, Deadline) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.ask_on(&mut self.lease()?, build, read)
    }

    fn ask_on<'v, T>(
        &self,
        lease: &mut Lease<'_>,
        build: impl FnOnce(&mut RequestBuf<'v>),
        read: impl FnOnce(&mut Connection, Deadline) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let timeout = self.answer_timeout();
        // From now: a wait before it on the same lease has used up the call's own time.
        let deadline = Deadline::after(Instant::now(), ANSWER_TIMEOUT_MIN)
            .at_least(self.deadline(timeout));
        lease
            .exchange(|connection| {
                let mut request = connection.new_request();
                build(&mut request);
                connection.ask(request, deadline)?;
                read(connection, deadline)
            })
            .map_err(|error| self.explain(error, timeout))
    }

    /// Sends a request that the server answers when it is time, and waits for that.
    fn wait_on(
        &self,
        lease: &mut Lease<'_>,
        timeout: Duration,
        follows: Follows,
        build: impl FnOnce(&mut RequestBuf<'_>),
    ) -> Result<Waited, StoreError> {
        let deadline = self.deadline(timeout);
        lease
            .exchange_blocking(|connection, acknowledged| {
                connection.wait(build, follows, deadline, acknowledged)
            })
            .map_err(|error| self.explain(error, timeout))
    }

    /// The values of the call's keys, as soon as all are there: one round trip where the server
    /// knows how, else two.
    fn get_when_there(&self, timeout: Duration) -> Result<Vec<Vec<u8>>, StoreError> {
        let keys = self.keys;
        let mut lease = self.lease()?;
        if lease.has_wait_get() {
            let follows = Follows::Values(keys.len());
            let waited = self.wait_on(&mut lease, timeout, follows, |request| {
                request.opcode(Opcode::WaitGet).user_keys(keys);
            })?;
            return match waited {
                Waited::Done(values) => Ok(values),
                Waited::TimedOut => Err(self.timed_out(lease, timeout)),
            };
        }
        let waited = self.wait_on(&mut lease, timeout, Follows::Nothing, |request| {
            request.opcode(Opcode::Wait).user_keys(keys);
        })?;
        if waited == Waited::TimedOut {
            return Err(self.timed_out(lease, timeout));
        }
        self.ask_on(
            &mut lease,
            |request| {
                if let [key] = keys {
                    request.opcode(Opcode::Get).user_key(key);
                } else {
                    request.opcode(Opcode::MultiGet).user_keys(keys);
                }
            },
            |connection, deadline| connection.read_blobs(keys.len(), deadline),
        )
    }

    fn pop_on(&self, lease: &mut Lease<'_>, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.ask_on(
            lease,
            |request| {
                request.opcode(Opcode::QueuePop).user_key(key);
            },
            |connection, deadline| match connection.read_i64(deadline)? {
                0 => Ok(None),
                1.. => connection.read_blob(deadline).map(Some),
                count => Err(negative_count(count)),
            },
        )
    }

    fn as_count(&self, count: i64) -> Result<u64, StoreError> {
        u64::try_from(count).map_err(|_| self.protocol_error(format!("a count of {count}")))
    }

    /// A timeout that names the keys which are still missing, if the server says so at once.
    fn timed_out(&self, lease: Lease<'_>, timeout: Duration) -> StoreError {
        let mut context = self.context();
        if let Some(missing) = self.missing_keys(lease) {
            context = context.with_keys(missing);
        }
        StoreError::Timeout { context, timeout }
    }

    /// Which of several keys are missing, found out on the side after a timeout.
    fn missing_keys(&self, lease: Lease<'_>) -> Option<Vec<&'c str>> {
        if !(2..=DIAGNOSED_KEYS_MAX).contains(&self.keys.len()) {
            return None;
        }
        let answers = self.diagnose(
            lease,
            |request| {
                for key in self.keys {
                    request.opcode(Opcode::Check).user_keys(&[key]);
                }
            },
            |connection, deadline| {
                let count = self.keys.len();
                (0..count).map(|_| connection.read_u8(deadline)).collect::<Result<Vec<_>, _>>()
            },
        )?;
        let pairs = self.keys.iter().zip(answers);
        let missing: Vec<&str> = pairs
            .filter(|(_, answer)| *answer != CHECK_READY)
            .map(|(key, _)| *key)
            .collect();
        // All there by now: then the list as a whole says more than an empty one.
        (!missing.is_empty()).then_some(missing)
    }

    /// How far a barrier got, found out on the side after a timeout.
    fn arrived_at_barrier(&self, lease: Lease<'_>, key: &str) -> Option<i64> {
        let count = self.diagnose(
            lease,
            |request| {
                request.opcode(Opcode::Get).user_key(key);
            },
            Connection::read_blob,
        )?;
        parse_decimal(&count)
    }

    /// Asks something that only makes an error clearer, and only for a moment.
    fn diagnose<T>(
        &self,
        mut lease: Lease<'_>,
        build: impl FnOnce(&mut RequestBuf<'_>),
        read: impl FnOnce(&mut Connection, Deadline) -> Result<T, Failure>,
    ) -> Option<T> {
        if !lease.is_in_step() {
            return None;
        }
        let deadline = Deadline::after(Instant::now(), DIAGNOSIS_TIMEOUT);
        lease
            .exchange(|connection| {
                let mut request = connection.new_request();
                build(&mut request);
                connection.ask(request, deadline)?;
                read(connection, deadline)
            })
            .ok()
    }

    fn protocol_error(&self, detail: String) -> StoreError {
        StoreError::Protocol {
            context: self.context(),
            detail,
        }
    }

    fn explain(&self, error: PoolError, timeout: Duration) -> StoreError {
        explain(error, self.context(), timeout)
    }
}

fn negative_count(count: i64) -> Failure {
    Failure::Protocol(format!("a count of {count}"))
}

/// Turns what happened to a connection into what happened to a call.
fn explain(error: PoolError, context: ErrorContext, timeout: Duration) -> StoreError {
    let failure = match error {
        PoolError::Connect(error) => return StoreError::Connect(error),
        PoolError::Ended(Ended::Closed) => return StoreError::Closed { context },
        PoolError::Ended(Ended::Lost { kind, text }) => {
            let source = io::Error::new(kind, format!("earlier: {text}"));
            return StoreError::ConnectionLost {
                context,
                outcome: Outcome::NotSent,
                source,
            };
        }
        PoolError::TimedOut => return StoreError::Timeout { context, timeout },
        PoolError::Failure(failure) => failure,
    };
    match failure {
        Failure::NotSent(source) => StoreError::ConnectionLost {
            context,
            outcome: Outcome::NotSent,
            source,
        },
        Failure::Lost(source) => {
            let source = match hint(context.operation) {
                Some(hint) if source.kind() == io::ErrorKind::UnexpectedEof => {
                    io::Error::new(source.kind(), format!("{source} {hint}"))
                }
                _ => source,
            };
            StoreError::ConnectionLost {
                context,
                outcome: Outcome::Unknown,
                source,
            }
        }
        Failure::NoReply => StoreError::NoReply { context, timeout },
        Failure::Protocol(detail) => StoreError::Protocol { context, detail },
    }
}

/// What else than its death can make a server close the connection in answer to a request: the wire
/// has no error replies.
const fn hint(operation: Operation) -> Option<&'static str> {
    match operation {
        Operation::Add => Some("A server also closes when the present value is not a number."),
        Operation::Barrier => Some(
            "A server also closes when the present value is not a number, and PyTorch's before 2.10 \
             do not know the operation.",
        ),
        Operation::ListKeys => Some("PyTorch's servers before 2.10 do not know the operation."),
        Operation::QueuePush | Operation::QueuePop | Operation::QueueLen => {
            Some("PyTorch's older server back end (use_libuv=False) has no queues.")
        }
        Operation::Get | Operation::MultiGet => {
            Some("PyTorch's older server back end also closes when the key is deleted meanwhile.")
        }
        _ => None,
    }
}
