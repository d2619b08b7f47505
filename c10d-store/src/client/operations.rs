//! The store's operations as requests: one round trip each, except for waits on PyTorch's servers.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};

use super::TcpStore;
use super::call::{Call, at_least_an_answer, negative_count};
use super::connection::{Connection, Follows, Waited};
use super::pool::PoolError;
use super::queue_take::{LOST_RACE_PAUSE, take_one_by_one};
use super::waiting::{Repeat, Wait};
use crate::compare_set::CompareSet;
use crate::error::{Operation, StoreError};
use crate::key::key_from_bytes;
use crate::known::Known;
use crate::store::{Store, StoreHandle};
use crate::value_rules::check_take_max;
use crate::wire::{EXCHANGED, FULL, NOT_EXCHANGED, Opcode, capability};

/// The most prefixes that a server deletes later (docs/spec/wire-extensions.md, DELETE_PREFIX 4).
const SCHEDULED_PREFIXES_MAX: usize = 4096;

/// The answer about a process group: a reply and a list.
const GROUP_BLOBS: usize = 2;

impl Store for TcpStore {
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        if let [(key, value)] = pairs {
            let keys = [*key];
            let call = self.call(Operation::Set, &keys, &[value])?;
            return call.write(|request| {
                request.opcode(Opcode::Set).user_key(key).value(value);
            });
        }
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        let values: Vec<&[u8]> = pairs.iter().map(|(_, value)| *value).collect();
        self.call(Operation::MultiSet, &keys, &values)?
            .write(|request| {
                request.opcode(Opcode::MultiSet).count(pairs.len());
                for (key, value) in pairs {
                    request.user_key(key).value(value);
                }
            })
    }

    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.call(Operation::Append, &[key], &[value])?
            .write(|request| {
                request.opcode(Opcode::Append).user_key(key).value(value);
            })
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.call(Operation::Add, &[key], &[])?.add(key, delta)
    }

    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError> {
        let keys = [key];
        let call = self.call(Operation::CompareSet, &keys, &[expected, desired])?;
        let is_repeated = Cell::new(false);
        call.repeated(self.timeout(), || {
            let mut lease = call.lease(self.timeout())?;
            let is_repeated = is_repeated.replace(true);
            let reports_outcome = lease.has(capability::COMPARE_EXCHANGE);
            let opcode = if reports_outcome {
                Opcode::CompareExchange
            } else {
                Opcode::CompareSet
            };
            let (outcome, value) = call.ask_on(
                &mut lease,
                |request| {
                    request.opcode(opcode).user_key(key);
                    request.value(expected).value(desired);
                },
                |connection, deadline| {
                    let outcome = if reports_outcome {
                        Some(connection.read_u8(deadline)?)
                    } else {
                        None
                    };
                    if outcome == Some(FULL) {
                        return Err(connection.read_refusal(deadline));
                    }
                    let value = if outcome == Some(EXCHANGED) {
                        desired.to_vec()
                    } else {
                        connection.read_blob(deadline)?
                    };
                    Ok((outcome, value))
                },
            )?;
            match outcome {
                None => Ok(CompareSet::from_answer(value, expected, desired)),
                Some(EXCHANGED) => Ok(CompareSet::new(value, true)),
                // The one before may have written it.
                Some(NOT_EXCHANGED) if is_repeated => {
                    Ok(CompareSet::from_answer(value, expected, desired))
                }
                Some(NOT_EXCHANGED) => Ok(CompareSet::new(value, false)),
                Some(other) => {
                    Err(call
                        .protocol_error(format!("the reply to COMPARE_EXCHANGE was 0x{other:02x}")))
                }
            }
        })
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

    fn get_all(
        &self,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let call = self.call(Operation::get_of(keys.len()), keys, &[])?;
        call.repeated(timeout, || call.get_when_present(timeout))
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let keys = [key];
        let call = self.call(Operation::Get, &keys, &[])?;
        call.repeated(self.timeout(), || {
            let mut lease = call.lease(self.timeout())?;
            if lease.has(capability::WAIT_GET) {
                return call.try_get_on(&mut lease, key);
            }
            if !call.check_on(&mut lease)? {
                return Ok(None);
            }
            let value = call.ask_on(
                &mut lease,
                |request| {
                    request.opcode(Opcode::Get).user_key(key);
                },
                Connection::read_blob,
            )?;
            Ok(Some(value))
        })
    }

    fn wait_all(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let call = self.call(Operation::Wait, keys, &[])?;
        call.repeated(timeout, || {
            let mut lease = call.lease(timeout)?;
            let waited = call.wait_for_keys(&mut lease, timeout)?;
            match waited {
                Waited::Done(_) => Ok(()),
                Waited::TimedOut => Err(call.timed_out(lease, timeout)),
            }
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let call = self.call(Operation::Check, keys, &[])?;
        call.repeated(self.timeout(), || {
            call.check_on(&mut call.lease(self.timeout())?)
        })
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let call = self.call_of(Operation::ListKeys);
        let keys = call.ask_again(
            |request| {
                request.opcode(Opcode::ListKeys);
            },
            |connection, deadline| {
                let count = connection.read_i64(deadline)?;
                let count = usize::try_from(count).map_err(|_| negative_count(count))?;
                connection.read_blobs_within_limit(count, deadline)
            },
        )?;
        // docs/spec/wire.md, 4.1: only users' keys start with the slash.
        let users = keys.iter().filter_map(|key| key.strip_prefix(b"/"));
        Ok(users.map(|key| key_from_bytes(key).into_owned()).collect())
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        let call = self.call_of(Operation::NumKeys);
        let count = call.ask_again(
            |request| {
                request.opcode(Opcode::GetNumKeys);
            },
            Connection::read_i64,
        )?;
        call.as_count(count)
    }

    fn meet(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        let keys = [key];
        let call = self.call(Operation::Barrier, &keys, &[])?;
        let world_size_on_wire = i64::try_from(world_size).unwrap_or(i64::MAX);
        let mut lease = call.lease(timeout)?;
        // Each request is an arrival.
        let wait = Wait {
            follows: Follows::Nothing,
            repeat: Repeat::Never,
            deadline: call.deadline(timeout),
        };
        let waited = lease.attempt_all(|lease| {
            lease.wait(&wait, |request| {
                request.opcode(Opcode::Barrier).user_key(key);
                request.i64(world_size_on_wire);
            })
        });
        match waited {
            Err(PoolError::Failure(failure)) => {
                Err(call.explain_close(&mut lease, key, failure, timeout))
            }
            Err(error) => Err(call.explain(error, timeout)),
            Ok(Waited::Done(_)) => Ok(()),
            Ok(Waited::TimedOut) => Err(StoreError::BarrierTimeout {
                arrived: call.arrived_at_barrier(lease, key),
                context: call.context(),
                timeout: timeout.unwrap_or(Duration::MAX),
                world_size,
            }),
        }
    }

    fn queue_push_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.call(Operation::QueuePush, &[key], &[value])?
            .write(|request| {
                request.opcode(Opcode::QueuePush).user_key(key).value(value);
            })
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let timeout = self.timeout();
        let keys = [key];
        let call = self.call(Operation::QueuePop, &keys, &[])?;
        // Pop first: an existing element then costs one round trip, and a server without queues fails at once instead
        // of after the timeout. Another worker can take the element between a wakeup and the pop, and a value of the
        // same name completes the wait without an element: in both cases, wait again.
        let mut lease = call.lease(timeout)?;
        let mut lost_races = 0;
        loop {
            if let Some(element) = call.pop_on(&mut lease, key)? {
                return Ok(element);
            }
            if lost_races > 0 {
                if call.deadline(timeout).has_passed(Instant::now()) {
                    return Err(StoreError::QueueEmpty {
                        context: call.context(),
                    });
                }
                // Most likely it is a value of that name, which also completes the next wait at once.
                thread::sleep(LOST_RACE_PAUSE);
            }
            let waited = call.wait_for_keys(&mut lease, timeout)?;
            if waited == Waited::TimedOut {
                return Err(call.timed_out(lease, timeout));
            }
            lost_races += 1;
        }
    }

    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let keys = [key];
        let call = self.call(Operation::QueuePop, &keys, &[])?;
        let mut lease = call.lease(self.timeout())?;
        call.pop_on(&mut lease, key)
    }

    fn queue_take_all(
        &self,
        key: &str,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let keys = [key];
        let call = self.call(Operation::QueueTake, &keys, &[])?;
        check_take_max(max, || call.context())?;
        let mut lease = call.lease(timeout)?;
        if !lease.has(capability::QUEUE_TAKE) {
            drop(lease);
            return take_one_by_one(self, key, max, timeout);
        }
        // Elements that the server has taken out must not get lost.
        let repeat = Repeat::Confirmed(call.answer_timeout());
        let follows = Follows::Elements(max);
        let waited = call.wait_on(&mut lease, timeout, repeat, follows, |request| {
            request
                .opcode(Opcode::QueueTake)
                .user_key(key)
                .u64(max as u64);
        })?;
        match waited {
            Waited::Done(elements) => Ok(elements),
            Waited::TimedOut if timeout == Some(Duration::ZERO) => Ok(Vec::new()),
            Waited::TimedOut => Err(call.timed_out(lease, timeout)),
        }
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        let keys = [key];
        let call = self.call(Operation::QueueLen, &keys, &[])?;
        let length = call.ask_again(
            |request| {
                request.opcode(Opcode::QueueLen).user_key(key);
            },
            Connection::read_i64,
        )?;
        call.as_count(length)
    }

    fn wait_changed(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = self.call(Operation::WaitChange, &keys, &[known.bytes()])?;
        call.repeated(timeout, || call.wait_for_change(key, known, timeout))
    }

    /// True on this crate's server, false on PyTorch's.
    fn has_prompt_watch(&self) -> bool {
        self.handle().transport.pool.has_wait_change()
    }

    fn delete_prefix(&self, prefix: &str, delay: Duration) -> Result<u64, StoreError> {
        let keys = [prefix];
        let call = self.call(Operation::DeletePrefix, &keys, &[])?;
        if prefix.is_empty() {
            let detail = "the prefix is empty: it would delete the whole store".to_owned();
            let context = call.context();
            return Err(StoreError::InvalidArgument { context, detail });
        }
        let mut lease = call.lease(self.timeout())?;
        if !lease.has(capability::DELETE_PREFIX) {
            return Err(call.unsupported());
        }
        // At least 1 ms: 0 is at once.
        let millis = delay.as_nanos().div_ceil(1_000_000);
        let millis = u32::try_from(millis).unwrap_or(u32::MAX);
        let count = call.ask_on(
            &mut lease,
            |request| {
                request.opcode(Opcode::DeletePrefix).user_key(prefix);
                request.u32(millis);
            },
            Connection::read_i64,
        )?;
        if count == -1 {
            let actual = SCHEDULED_PREFIXES_MAX + 1;
            return Err(call.limit_exceeded("prefixes to delete later", actual, actual - 1));
        }
        call.as_count(count)
    }

    fn end_waits(&self, prefix: &str) -> Result<u64, StoreError> {
        let keys = [prefix];
        let call = self.call(Operation::EndWaits, &keys, &[])?;
        let mut lease = call.lease(self.timeout())?;
        if !lease.has(capability::END_WAITS) {
            return Err(call.unsupported());
        }
        let count = call.ask_on(
            &mut lease,
            |request| {
                request.opcode(Opcode::EndWaits).user_key(prefix);
            },
            Connection::read_i64,
        )?;
        call.as_count(count)
    }

    fn set_ephemeral_bytes(
        &self,
        key: &str,
        value: &[u8],
        will: Option<(&str, &[u8])>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.claim_key(key, value, will)
    }

    fn keep_alive(&self, silence_max: Option<Duration>) -> Result<bool, StoreError> {
        self.keep_owner_alive(silence_max)
    }

    fn ask_group(
        &self,
        group: &str,
        request: &[u8],
        waits: bool,
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        let keys = [group];
        let call = self.call(Operation::Membership, &keys, &[request])?;
        let mut lease = call.lease(timeout)?;
        if !lease.has(capability::MEMBERSHIP) {
            return Err(call.unsupported());
        }
        if !waits {
            let timeout = at_least_an_answer(timeout);
            let blobs = call.ask_by(
                &mut lease,
                call.deadline(timeout),
                timeout,
                |bytes| {
                    bytes.opcode(Opcode::Membership).user_key(group);
                    bytes.value(request);
                },
                |connection, deadline| connection.read_blobs(GROUP_BLOBS, deadline),
            );
            return blobs.map(Some);
        }
        let follows = Follows::Values(GROUP_BLOBS);
        let waited = call.wait_on(&mut lease, timeout, Repeat::Free, follows, |bytes| {
            bytes.opcode(Opcode::MembershipPoll).user_key(group);
            bytes.value(request);
        })?;
        Ok(match waited {
            Waited::TimedOut => None,
            Waited::Done(blobs) => Some(blobs),
        })
    }
}

impl StoreHandle for TcpStore {
    fn label(&self) -> String {
        self.handle().transport.label.clone()
    }

    fn check_process(&self) -> Result<(), StoreError> {
        let context = || self.call_of(Operation::Open).context();
        let process = self.handle.get().map(drop);
        process.map_err(|source| StoreError::OtherProcess {
            context: context(),
            source,
        })
    }

    fn timeout(&self) -> Option<Duration> {
        self.handle().transport.timeout.get()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.handle().transport.timeout.set(timeout);
    }

    /// Opens a new connection to the same server, with this store's timeout. Does not keep a hosted
    /// server running.
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.check_not_closed()?;
        let timeout = at_least_an_answer(self.timeout());
        Ok(Arc::new(self.clone_by(
            Deadline::after(Instant::now(), timeout),
            self.handle().transport.pool.reconnects(),
        )?))
    }

    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store> {
        Arc::new(Self::with_cancel(self, cancel))
    }

    fn close(&self) {
        Self::close(self);
    }
}

impl TcpStore {
    /// Starts a call with these keys and values, after checking the limits.
    pub(super) fn call<'c>(
        &'c self,
        operation: Operation,
        keys: &'c [&'c str],
        values: &[&[u8]],
    ) -> Result<Call<'c>, StoreError> {
        let call = Call::new(&self.handle().transport, &self.cancel, operation, keys);
        call.check_limits(values)?;
        Ok(call)
    }

    /// Starts a call without keys.
    pub(super) fn call_of(&self, operation: Operation) -> Call<'_> {
        Call::new(&self.handle().transport, &self.cancel, operation, &[])
    }
}
