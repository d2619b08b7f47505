//! One call of a store: its deadline, its connection and its errors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions, Cancel, Deadline};

use super::connection::{ANSWER_TIMEOUT_MIN, Connection, Failure, Follows, Waited};
use super::explain::explain;
use super::lanes::Need;
use super::pool::{Lease, Pool, PoolError};
use super::waiting::{Repeat, Wait};
use crate::decimal::parse_decimal;
use crate::default_timeout::DefaultTimeout;
use crate::error::{ErrorContext, Operation, StoreError};
use crate::key::key_to_bytes;
use crate::limits::WireLimits;
use crate::wire::{
    CHECK_NOT_READY, CHECK_READY, FULL, Opcode, REFUSAL_NONCE, RequestBuf, STOP_WAITING,
    WAIT_CANCELED, capability,
};

/// The most time spent on finding the missing keys after a timeout, and the most keys checked.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_millis(100);
const DIAGNOSED_KEYS_MAX: usize = 1024;

/// The timeout of an operation that the server answers at once: `timeout`, or [`ANSWER_TIMEOUT_MIN`] if longer.
pub(super) fn at_least_an_answer(timeout: Option<Duration>) -> Option<Duration> {
    timeout.map(|timeout| timeout.max(ANSWER_TIMEOUT_MIN))
}

/// State shared by all calls of one store: connections, default timeout and limits.
#[derive(Debug)]
pub(super) struct Transport {
    pub(super) pool: Arc<Pool>,
    /// The store's name in errors.
    pub(super) label: String,
    pub(super) limits: WireLimits,
    pub(super) timeout: DefaultTimeout,
}

impl Transport {
    pub(super) fn new(
        pool: Arc<Pool>,
        label: String,
        limits: WireLimits,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            pool,
            label,
            limits,
            timeout: DefaultTimeout::new(timeout),
        }
    }
}

/// One call: its operation, keys and start time.
#[derive(Debug)]
pub(super) struct Call<'c> {
    transport: &'c Transport,
    cancel: &'c Cancel,
    operation: Operation,
    keys: &'c [&'c str],
    started: Instant,
}

impl<'c> Call<'c> {
    pub(super) fn new(
        transport: &'c Transport,
        cancel: &'c Cancel,
        operation: Operation,
        keys: &'c [&'c str],
    ) -> Self {
        Self {
            transport,
            cancel,
            operation,
            keys,
            started: Instant::now(),
        }
    }

    /// Returns the same call over other connections.
    pub(super) fn over<'o>(&self, transport: &'o Transport) -> Call<'o>
    where
        'c: 'o,
    {
        Call { transport, ..*self }
    }

    pub(super) fn context(&self) -> ErrorContext {
        ErrorContext::new(
            self.operation,
            self.keys.iter().copied(),
            self.transport.label.as_str(),
            self.started.elapsed(),
        )
    }

    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        Deadline::after(self.started, timeout)
    }

    pub(super) fn store_timeout(&self) -> Option<Duration> {
        self.transport.timeout.get()
    }

    /// The time limit for a request that the server answers at once.
    pub(super) fn answer_timeout(&self) -> Option<Duration> {
        at_least_an_answer(self.transport.timeout.get())
    }

    /// A connection for this call. Waits for at most `timeout`, or [`ANSWER_TIMEOUT_MIN`] if longer.
    pub(super) fn lease(&self, timeout: Option<Duration>) -> Result<Lease<'c>, StoreError> {
        let timeout = at_least_an_answer(timeout);
        self.lease_by(self.deadline(timeout), timeout)
    }

    /// A connection for this call, until `deadline`; errors show `timeout`.
    pub(super) fn lease_by(
        &self,
        deadline: Deadline,
        timeout: Option<Duration>,
    ) -> Result<Lease<'c>, StoreError> {
        let lease = self
            .transport
            .pool
            .take(Need::Answer, deadline, self.cancel);
        lease.map_err(|error| self.explain(error, timeout))
    }

    /// Sleeps until the deadline. Fails early if the store is closed, its connection is lost, or the call is cancelled.
    pub(super) fn sleep_until(
        &self,
        deadline: Deadline,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        let slept = self.transport.pool.sleep_until(deadline, self.cancel);
        slept.map_err(|error| self.explain(error, timeout))
    }

    /// Sends a write, which has no reply. A server that can refuse it is asked whether it has.
    pub(super) fn write<'v>(
        &self,
        write: impl FnOnce(&mut RequestBuf<'v>),
    ) -> Result<(), StoreError> {
        let mut lease = self.lease(self.transport.timeout.get())?;
        if lease.has(capability::REFUSAL) {
            // Then it was certainly not carried out.
            let alive = lease.exchange(Connection::check_alive);
            alive.map_err(|error| self.explain(error, self.answer_timeout()))?;
            let build = |request: &mut RequestBuf<'v>| {
                write(request);
                request.opcode(Opcode::Ping).u32(REFUSAL_NONCE);
            };
            self.ask_on(&mut lease, build, Connection::read_outcome)
        } else {
            self.tell_on(&mut lease, write)
        }
    }

    /// Sends a request that has no reply.
    pub(super) fn tell_on<'v>(
        &self,
        lease: &mut Lease<'_>,
        build: impl FnOnce(&mut RequestBuf<'v>),
    ) -> Result<(), StoreError> {
        let timeout = self.answer_timeout();
        let deadline = self.deadline(timeout);
        let stays_unacknowledged = lease.is_first_lane() && !self.transport.pool.reconnects();
        lease
            .exchange(|connection| {
                let mut request = connection.new_request();
                build(&mut request);
                connection.tell(request, deadline)?;
                if stays_unacknowledged {
                    Ok(())
                } else {
                    connection.acknowledge(deadline)
                }
            })
            .map_err(|error| self.explain(error, timeout))
    }

    /// Sends a request that the server answers at once, and reads the reply.
    pub(super) fn ask<'v, T>(
        &self,
        build: impl FnOnce(&mut RequestBuf<'v>),
        read: impl FnOnce(&mut Connection, Deadline) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.ask_on(&mut self.lease(self.transport.timeout.get())?, build, read)
    }

    /// Like [`ask`](Self::ask), for a request that [may be repeated](Self::repeated).
    pub(super) fn ask_again<'v, T>(
        &self,
        build: impl Fn(&mut RequestBuf<'v>),
        read: impl Fn(&mut Connection, Deadline) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.repeated(self.transport.timeout.get(), || self.ask(&build, &read))
    }

    /// Makes a call that may be carried out twice. If the store [reconnects](super::TcpStoreOptions::with_reconnect),
    /// the call is repeated until the timeout while it finds the connection lost.
    pub(super) fn repeated<T>(
        &self,
        timeout: Option<Duration>,
        attempt: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let deadline = self.deadline(at_least_an_answer(timeout));
        let mut backoff = None;
        loop {
            let error = match attempt() {
                Err(error @ (StoreError::ConnectionLost { .. } | StoreError::Connect { .. })) => {
                    error
                }
                result => return result,
            };
            let now = Instant::now();
            if !self.transport.pool.reconnects() || deadline.has_passed(now) {
                return Err(error);
            }
            log::debug!("connecting again: {error}");
            let backoff = backoff.get_or_insert_with(|| {
                Backoff::new(BackoffOptions::default(), u64::from(std::process::id()))
            });
            let again_at = Deadline::after(now, backoff.next_delay());
            self.sleep_until(again_at.min(deadline), timeout)?;
        }
    }

    pub(super) fn ask_on<'v, T>(
        &self,
        lease: &mut Lease<'_>,
        build: impl FnOnce(&mut RequestBuf<'v>),
        read: impl FnOnce(&mut Connection, Deadline) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let timeout = self.answer_timeout();
        // From now: an earlier wait on the same lease may have used up the call's timeout.
        let deadline =
            Deadline::after(Instant::now(), ANSWER_TIMEOUT_MIN).at_least(self.deadline(timeout));
        self.ask_by(lease, deadline, timeout, build, read)
    }

    /// Like [`ask_on`](Self::ask_on) with another deadline; errors show `timeout`.
    pub(super) fn ask_by<'v, T>(
        &self,
        lease: &mut Lease<'_>,
        deadline: Deadline,
        timeout: Option<Duration>,
        build: impl FnOnce(&mut RequestBuf<'v>),
        read: impl FnOnce(&mut Connection, Deadline) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        lease
            .exchange(|connection| connection.ask(build, read, deadline))
            .map_err(|error| self.explain(error, timeout))
    }

    /// Sends a request that the server answers later, and waits for the reply.
    pub(super) fn wait_on<'v>(
        &self,
        lease: &mut Lease<'_>,
        timeout: Option<Duration>,
        repeat: Repeat,
        follows: Follows,
        build: impl Fn(&mut RequestBuf<'v>),
    ) -> Result<Waited, StoreError> {
        let wait = Wait {
            follows,
            repeat,
            deadline: self.deadline(timeout),
        };
        self.wait_by(lease, &wait, timeout, build)
    }

    /// Like [`wait_on`](Self::wait_on) with another deadline; errors show `timeout`.
    pub(super) fn wait_by<'v>(
        &self,
        lease: &mut Lease<'_>,
        wait: &Wait,
        timeout: Option<Duration>,
        build: impl Fn(&mut RequestBuf<'v>),
    ) -> Result<Waited, StoreError> {
        lease
            .wait(wait, build)
            .map_err(|error| self.explain(error, timeout))
    }

    /// Waits until all keys of the call exist.
    ///
    /// Does not give way if there are several: a key that is deleted again before the last one is written
    /// counts as written (*WAIT 4* in docs/spec/wire.md), which a repeated wait would not know.
    pub(super) fn wait_for_keys(
        &self,
        lease: &mut Lease<'_>,
        timeout: Option<Duration>,
    ) -> Result<Waited, StoreError> {
        let repeat = if self.keys.len() > 1 {
            Repeat::Never
        } else {
            Repeat::Free
        };
        self.wait_on(lease, timeout, repeat, Follows::Nothing, |request| {
            request.opcode(Opcode::Wait).user_keys(self.keys);
        })
    }

    /// The values of the call's keys as soon as all exist: one round trip if the server has WAIT_GET,
    /// otherwise two.
    pub(super) fn get_when_present(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let keys = self.keys;
        let mut lease = self.lease(timeout)?;
        if lease.has(capability::WAIT_GET) {
            let follows = Follows::Values(keys.len());
            let waited = self.wait_on(&mut lease, timeout, Repeat::Free, follows, |request| {
                request.opcode(Opcode::WaitGet).user_keys(keys);
            })?;
            return match waited {
                Waited::Done(values) => Ok(values),
                Waited::TimedOut => Err(self.timed_out(lease, timeout)),
            };
        }
        let waited = self.wait_for_keys(&mut lease, timeout)?;
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

    /// The value of `key`, if it exists, from a server with WAIT_GET: a wait and its cancel in one
    /// write. The server handles them in order, so the wait ends at once.
    pub(super) fn try_get_on(
        &self,
        lease: &mut Lease<'_>,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.ask_on(
            lease,
            |request| {
                request.opcode(Opcode::WaitGet).user_keys(&[key]);
                request.opcode(Opcode::CancelWait);
            },
            |connection, deadline| {
                let mut value = None;
                // Another worker's write can arrive between the two.
                loop {
                    match connection.read_u8(deadline)? {
                        STOP_WAITING if value.is_none() => {
                            value = Some(connection.read_blob(deadline)?);
                        }
                        WAIT_CANCELED => return Ok(value),
                        FULL if value.is_none() => {
                            let refused = connection.read_refusal(deadline);
                            connection.read_u8(deadline)?;
                            return Err(refused);
                        }
                        other => {
                            let detail = format!("the reply to a wait was 0x{other:02x}");
                            return Err(Failure::Protocol(detail));
                        }
                    }
                }
            },
        )
    }

    /// Whether all keys of the call exist.
    pub(super) fn check_on(&self, lease: &mut Lease<'_>) -> Result<bool, StoreError> {
        let answer = self.ask_on(
            lease,
            |request| {
                request.opcode(Opcode::Check).user_keys(self.keys);
            },
            Connection::read_u8,
        )?;
        match answer {
            CHECK_READY => Ok(true),
            CHECK_NOT_READY => Ok(false),
            other => Err(self.protocol_error(format!("the reply to CHECK was 0x{other:02x}"))),
        }
    }

    pub(super) fn pop_on(
        &self,
        lease: &mut Lease<'_>,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
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

    pub(super) fn as_count(&self, count: i64) -> Result<u64, StoreError> {
        u64::try_from(count).map_err(|_| self.protocol_error(format!("a count of {count}")))
    }

    /// A timeout error that names the missing keys, if the server reports them at once.
    pub(super) fn timed_out(&self, lease: Lease<'_>, timeout: Option<Duration>) -> StoreError {
        let mut context = self.context();
        if let Some(missing) = self.missing_keys(lease) {
            context = context.with_keys(missing);
        }
        StoreError::timeout(context, timeout)
    }

    /// Which of several keys are missing, asked after a timeout.
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
                (0..count)
                    .map(|_| connection.read_u8(deadline))
                    .collect::<Result<Vec<_>, _>>()
            },
        )?;
        let pairs = self.keys.iter().zip(answers);
        let missing: Vec<&str> = pairs
            .filter(|(_, answer)| *answer != CHECK_READY)
            .map(|(key, _)| *key)
            .collect();
        // All exist by now: the whole list is more useful than an empty one.
        (!missing.is_empty()).then_some(missing)
    }

    /// The number of arrivals at a barrier, asked after a timeout.
    pub(super) fn arrived_at_barrier(&self, lease: Lease<'_>, key: &str) -> Option<i64> {
        let count = self.diagnose(
            lease,
            |request| {
                request.opcode(Opcode::Get).user_key(key);
            },
            Connection::read_blob,
        )?;
        parse_decimal(&count)
    }

    /// Asks for details of an error, for at most [`DIAGNOSIS_TIMEOUT`].
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
            .exchange(|connection| connection.ask(build, read, deadline))
            .ok()
    }

    /// Waits until the server has carried out what was sent on this lane.
    pub(super) fn acknowledge_on(&self, lease: &mut Lease<'_>) -> Result<(), StoreError> {
        let timeout = self.answer_timeout();
        let deadline = self.deadline(timeout);
        lease
            .exchange(|connection| connection.acknowledge(deadline))
            .map_err(|error| self.explain(error, timeout))
    }

    /// The server lacks the extension.
    pub(super) fn unsupported(&self) -> StoreError {
        StoreError::Unsupported {
            context: self.context(),
        }
    }

    pub(super) fn protocol_error(&self, detail: String) -> StoreError {
        StoreError::Protocol {
            context: self.context(),
            detail,
        }
    }

    pub(super) fn explain(&self, error: PoolError, timeout: Option<Duration>) -> StoreError {
        explain(error, self.context(), timeout)
    }

    pub(super) fn limit_exceeded(
        &self,
        what: &'static str,
        actual: usize,
        limit: usize,
    ) -> StoreError {
        StoreError::LimitExceeded {
            context: self.context(),
            what,
            actual,
            limit,
        }
    }

    /// Refuses requests for which the server would close the connection.
    pub(super) fn check_limits(&self, values: &[&[u8]]) -> Result<(), StoreError> {
        let limits = self.transport.limits;
        let too_long = |what, actual, limit| self.limit_exceeded(what, actual, limit);
        let mut of_keys = 0;
        for key in self.keys {
            // The limit includes the `/`.
            let limit = limits.key_bytes_max.saturating_sub(1);
            let length = key_to_bytes(key).len();
            of_keys += length + 1;
            if length > limit {
                return Err(too_long("key bytes", length, limit));
            }
        }
        let limit = limits.keys_per_request_max;
        if self.keys.len() > limit {
            return Err(too_long("keys in one request", self.keys.len(), limit));
        }
        // Two words for a count or other arguments.
        let length_words = 8 * (2 + self.keys.len() + values.len());
        let of_values: usize = values.iter().map(|value| value.len()).sum();
        let request_bytes = 1 + length_words + of_keys + of_values;
        let limit = limits.request_bytes_max;
        if request_bytes > limit {
            return Err(too_long("request bytes", request_bytes, limit));
        }
        for value in values {
            let limit = limits.value_bytes_max;
            if value.len() > limit {
                return Err(too_long("value bytes", value.len(), limit));
            }
        }
        Ok(())
    }
}

pub(super) fn negative_count(count: i64) -> Failure {
    Failure::Protocol(format!("a count of {count}"))
}
