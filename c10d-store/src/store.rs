//! The operations of every store, as an object-safe trait.
//!
//! Contains no logic except the generic barrier of PyTorch's base class
//! (`torch/csrc/distributed/c10d/Store.hpp`).

use std::fmt::Debug;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};

use crate::compare_set::CompareSet;
use crate::error::{ErrorContext, Operation, StoreError};
use crate::known::Known;

/// The default timeout of a store: 300 s, as in PyTorch.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A key-value store shared by the workers of a training job.
///
/// Keys are text, and any bytes with [`key_from_bytes`](crate::key_from_bytes); values are bytes. All methods
/// may be called from any number of threads, and a call that blocks does not delay others.
///
/// **Timeouts** mean the same in every store of this crate: `None` waits indefinitely, and
/// [`Duration::ZERO`] checks once without waiting. (In PyTorch, zero checks once in TCPStore, and
/// waits indefinitely in HashStore and FileStore.)
///
/// Every store of this crate and `dyn Store` also have `set`, `compare_set`, `append` and `queue_push`,
/// which take any `AsRef<[u8]>`; an implementation provides `set_bytes` and the like.
///
/// The behaviour follows PyTorch's `c10d::Store`. Unless a method says otherwise, it blocks for at most
/// [`timeout`](Self::timeout).
///
/// ```
/// use c10d_store::{HashStore, Store};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let store = HashStore::new();
/// store.set("epoch", "3")?;
/// assert_eq!(store.get("epoch")?, b"3");
/// assert_eq!(store.add("arrived", 1)?, 1);
/// # Ok(())
/// # }
/// ```
pub trait Store: Debug + Send + Sync {
    /// Creates `key` or replaces its value, and wakes all calls that wait for it.
    ///
    /// Over TCP the server sends no reply: the call returns once the system has accepted the bytes. A
    /// later operation on the same store sees the write; another client may not see it yet.
    ///
    /// # Errors
    /// [`StoreError::LimitExceeded`] for a key or value that is too long, [`StoreError::Closed`] after
    /// [`close`](Self::close), and any error of reaching the store: [`StoreError::ConnectionLost`],
    /// [`StoreError::NoReply`], [`StoreError::File`].
    fn set_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// The value of `key`. Waits until the key exists, for at most [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the key did not appear; otherwise as [`set_bytes`](Self::set_bytes).
    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.get_timeout(key, self.timeout())
    }

    /// The value of `key`. Waits until the key exists, for at most `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the key did not appear; otherwise as [`set_bytes`](Self::set_bytes).
    fn get_timeout(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>, StoreError>;

    /// The value of `key`, or `None` if the key is missing. Does not wait for the key.
    ///
    /// PyTorch's servers answer a read of a missing key with an empty value. On such a server the value
    /// is also empty if the key is deleted during this call, and if `key` is a queue.
    ///
    /// ```
    /// use c10d_store::{HashStore, Store};
    ///
    /// # fn main() -> Result<(), c10d_store::StoreError> {
    /// let store = HashStore::new();
    /// assert_eq!(store.try_get("epoch")?, None);
    /// store.set("epoch", "")?;
    /// assert_eq!(store.try_get("epoch")?, Some(vec![]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`set_bytes`](Self::set_bytes).
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Adds `delta` to the number at `key` (decimal text; a missing key counts as 0) and returns
    /// the sum. Overflow wraps.
    ///
    /// # Errors
    /// [`StoreError::NotANumber`] if the value is not a number; the store stays usable. Otherwise as
    /// [`set_bytes`](Self::set_bytes).
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError>;

    /// Writes `desired` if the value of `key` equals `expected`, or if the key is missing and
    /// `expected` is empty. Returns the resulting value and, if the store reports it, whether this call
    /// wrote it: see [`CompareSet`].
    ///
    /// ```
    /// use c10d_store::{HashStore, Store};
    ///
    /// # fn main() -> Result<(), c10d_store::StoreError> {
    /// let store = HashStore::new();
    /// // The first worker to claim the key leads. Each worker writes its own value.
    /// assert_eq!(store.compare_set("leader", "", "worker 1")?.value(), b"worker 1");
    /// assert_eq!(store.compare_set("leader", "", "worker 2")?.value(), b"worker 1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`set_bytes`](Self::set_bytes).
    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError>;

    /// Whether every key exists. Does not wait for keys. True for no keys.
    ///
    /// # Errors
    /// As [`set_bytes`](Self::set_bytes).
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError>;

    /// Waits until every key exists, for at most [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if a key did not appear; otherwise as [`set_bytes`](Self::set_bytes).
    fn wait(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.wait_timeout(keys, self.timeout())
    }

    /// Waits until every key exists, for at most `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if a key did not appear; otherwise as [`set_bytes`](Self::set_bytes).
    fn wait_timeout(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError>;

    /// Waits until the value of `key` differs from what is `known`, for at most `timeout`, and returns
    /// it. Returns at once if it differs already. Waits for a missing key.
    ///
    /// A value that changes and changes back between two checks can go unnoticed, more so where
    /// [`wakes_on_change`](Self::wakes_on_change) is false.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use c10d_store::{HashStore, Known, Store};
    ///
    /// # fn main() -> Result<(), c10d_store::StoreError> {
    /// let store = HashStore::new();
    /// store.set("state", b"round 7, beat 1")?;
    /// let seen = store.wait_change("state", Known::nothing(), Some(Duration::ZERO))?;
    /// assert_eq!(seen, b"round 7, beat 1");
    ///
    /// store.set("state", b"round 7, beat 2")?; // the round is the same
    /// let round = Known::part(&seen, 0..7);
    /// let unchanged = store.wait_change("state", round, Some(Duration::from_millis(1)));
    /// assert!(unchanged.unwrap_err().is_timeout());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the value did not change in time; otherwise as
    /// [`set_bytes`](Self::set_bytes), with the limit on values for the known bytes.
    fn wait_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError>;

    /// Whether [`wait_change`](Self::wait_change) returns within milliseconds of a change. If not, it
    /// polls once a second: PyTorch's servers have no such notification.
    fn wakes_on_change(&self) -> bool;

    /// Removes `key`, and returns whether it existed. (PyTorch's `FileStore` always returns true.)
    ///
    /// # Errors
    /// As [`set_bytes`](Self::set_bytes).
    fn delete_key(&self, key: &str) -> Result<bool, StoreError>;

    /// The number of keys with a value in the whole store, including the store's internal keys.
    ///
    /// # Errors
    /// As [`set_bytes`](Self::set_bytes).
    fn num_keys(&self) -> Result<u64, StoreError>;

    /// Appends `value` to the value of `key`, creating the key if it is missing.
    ///
    /// # Errors
    /// As [`set_bytes`](Self::set_bytes).
    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// The values of all `keys`, in order. Waits until every key exists, for at most
    /// [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if a key did not appear; otherwise as [`set_bytes`](Self::set_bytes).
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.multi_get_timeout(keys, self.timeout())
    }

    /// The values of all `keys`, in order. Waits until every key exists, for at most `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if a key did not appear; otherwise as [`set_bytes`](Self::set_bytes).
    fn multi_get_timeout(
        &self,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError>;

    /// Sets all pairs, from left to right.
    ///
    /// # Errors
    /// As [`set_bytes`](Self::set_bytes).
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError>;

    /// Appends `value` to the queue `key`.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the store has no queues; otherwise as
    /// [`set_bytes`](Self::set_bytes).
    fn queue_push_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let _ = value;
        Err(no_queues(self, Operation::QueuePush, key))
    }

    /// Removes and returns the first element of the queue `key`. Waits for one, for at most
    /// [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if nothing was pushed in time, [`StoreError::QueueEmpty`] if another
    /// worker took the element first (only on PyTorch's server), [`StoreError::Unsupported`] if the
    /// store has no queues; otherwise as [`set_bytes`](Self::set_bytes).
    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        Err(no_queues(self, Operation::QueuePop, key))
    }

    /// As [`queue_pop`](Self::queue_pop), but waits for at most `timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use c10d_store::{HashStore, Store, StoreError};
    ///
    /// # fn main() -> Result<(), StoreError> {
    /// let store = HashStore::new();
    /// store.queue_push("jobs", "a")?;
    /// assert_eq!(store.queue_pop_timeout("jobs", Some(Duration::from_secs(1)))?, b"a");
    /// let empty = store.queue_pop_timeout("jobs", Some(Duration::ZERO));
    /// assert!(matches!(empty, Err(StoreError::QueueEmpty { .. })));
    /// let late = store.queue_pop_timeout("jobs", Some(Duration::from_millis(1)));
    /// assert!(matches!(late, Err(StoreError::Timeout { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As `queue_pop`; with a timeout of zero [`StoreError::QueueEmpty`] if the queue is empty.
    fn queue_pop_timeout(
        &self,
        key: &str,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let began = Instant::now();
        let first = self.queue_take(key, 1, timeout)?.pop();
        first.ok_or_else(|| {
            let key = self.full_key(key);
            let (operation, keys) = (Operation::QueuePop, [key.as_str()]);
            let context = ErrorContext::new(operation, keys, self.label(), began.elapsed());
            StoreError::QueueEmpty { context }
        })
    }

    /// Removes and returns the first element of the queue `key`; `None` if the queue is empty. Does not
    /// wait for one.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the store has no queues; otherwise as
    /// [`set_bytes`](Self::set_bytes).
    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Err(no_queues(self, Operation::QueuePop, key))
    }

    /// Removes and returns elements from the head of the queue `key`, at least one and at most `max`. Waits
    /// for one, for at most `timeout`; with a timeout of zero the result may be empty. Other workers may get
    /// the elements in between only where the store takes one at a time: on PyTorch's servers.
    ///
    /// A server may return fewer elements than it has: at most 4 MiB at once, or one.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use c10d_store::{HashStore, Store};
    ///
    /// # fn main() -> Result<(), c10d_store::StoreError> {
    /// let store = HashStore::new();
    /// for element in ["a", "b", "c"] {
    ///     store.queue_push("jobs", element)?;
    /// }
    /// assert_eq!(store.queue_take("jobs", 2, None)?, ["a", "b"].map(Vec::from));
    /// assert_eq!(store.queue_take("jobs", 2, None)?, ["c"].map(Vec::from));
    /// assert!(store.queue_take("jobs", 2, Some(Duration::ZERO))?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if nothing was pushed in time, [`StoreError::NoReply`] if the server did not
    /// confirm in time that it took nothing, [`StoreError::InvalidArgument`] for a maximum of 0,
    /// [`StoreError::Unsupported`] if the store has no queues; otherwise as
    /// [`set_bytes`](Self::set_bytes).
    fn queue_take(
        &self,
        key: &str,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        generic_queue_take(self, key, max, timeout)
    }

    /// The number of elements in the queue `key`; 0 for a missing one.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the store has no queues; otherwise as
    /// [`set_bytes`](Self::set_bytes).
    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        Err(no_queues(self, Operation::QueueLen, key))
    }

    /// All keys that have a value, in no particular order. For keys that are not UTF-8 see
    /// [`key_to_bytes`](crate::key_to_bytes).
    ///
    /// # Errors
    /// As [`set_bytes`](Self::set_bytes).
    fn list_keys(&self) -> Result<Vec<String>, StoreError>;

    /// Waits until `world_size` workers have arrived at the barrier `key`, for at most
    /// [`timeout`](Self::timeout). See [`barrier_timeout`](Self::barrier_timeout).
    ///
    /// # Errors
    /// As [`barrier_timeout`](Self::barrier_timeout).
    fn barrier(&self, key: &str, world_size: usize) -> Result<(), StoreError> {
        self.barrier_timeout(key, world_size, self.timeout())
    }

    /// Waits until `world_size` workers have arrived at the barrier `key`, for at most `timeout`.
    ///
    /// A key works once: a completed barrier stays open. An arrival that timed out stays counted.
    /// Workers that use a [`PrefixStore`](crate::PrefixStore) and workers that use the TCP store itself
    /// do not meet, as in PyTorch.
    ///
    /// # Errors
    /// [`StoreError::BarrierTimeout`] if not all workers arrived in time, [`StoreError::NotANumber`] if the key has a
    /// value that is not a number, [`StoreError::InvalidArgument`] for a world size of 0 (not on TCP stores); otherwise as
    /// [`set_bytes`](Self::set_bytes).
    fn barrier_timeout(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError>;

    /// The default timeout, for operations without a timeout argument; `None` waits indefinitely.
    fn timeout(&self) -> Option<Duration>;

    /// Sets the default timeout of later calls on this handle and on every wrapper around it.
    fn set_timeout(&self, timeout: Option<Duration>);

    /// A second, independent handle to the same store, with the same default timeout.
    ///
    /// # Errors
    /// [`StoreError::Connect`] or [`StoreError::File`] if the store cannot be reached,
    /// [`StoreError::Closed`] after [`close`](Self::close).
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError>;

    /// Closes this handle: its calls in progress in other threads fail at once with
    /// [`StoreError::Closed`], and so do all later ones. The store and its other handles, including
    /// [clones](Self::clone_store), continue. A wrapper closes the handle that it wraps. Does not block.
    fn close(&self);

    /// The same handle, whose calls `cancel` ends: those that wait, and others whose answer does not arrive, fail with
    /// [`StoreError::Interrupted`]. The store stays usable, with another `Cancel`. The calls of this value end as before.
    ///
    /// A value that is present, or that arrives at the same time, is returned. Costs no connection.
    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store>;

    /// Whether the store implements `append`, `multi_get` and `multi_set` as single operations.
    fn has_extended_api(&self) -> bool;

    /// The store's name in error messages: `TCP store 10.0.0.1:29500`, `hash store`.
    fn label(&self) -> String;

    /// `key` with all prefixes of wrappers, as error messages show it.
    fn full_key(&self, key: &str) -> String {
        key.to_owned()
    }

    /// The store that this one wraps; `None` if it wraps none. PyTorch's
    /// `PrefixStore.underlying_store`.
    fn underlying_store(&self) -> Option<&dyn Store> {
        None
    }
}

/// The operations with values, for any kind of bytes: strings, arrays, vectors. Generic methods would
/// make the trait unusable as `dyn Store`, so every type has them as inherent methods.
macro_rules! takes_any_bytes {
    (impl[$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> $type {
            /// [`Store::set_bytes`](crate::Store::set_bytes) for any kind of bytes.
            ///
            /// # Errors
            /// As [`Store::set_bytes`](crate::Store::set_bytes).
            pub fn set(
                &self,
                key: &str,
                value: impl AsRef<[u8]>,
            ) -> Result<(), $crate::StoreError> {
                $crate::Store::set_bytes(self, key, value.as_ref())
            }

            /// [`Store::compare_set_bytes`](crate::Store::compare_set_bytes) for any kind of bytes.
            ///
            /// # Errors
            /// As [`Store::compare_set_bytes`](crate::Store::compare_set_bytes).
            pub fn compare_set(
                &self,
                key: &str,
                expected: impl AsRef<[u8]>,
                desired: impl AsRef<[u8]>,
            ) -> Result<$crate::CompareSet, $crate::StoreError> {
                let (expected, desired) = (expected.as_ref(), desired.as_ref());
                $crate::Store::compare_set_bytes(self, key, expected, desired)
            }

            /// [`Store::append_bytes`](crate::Store::append_bytes) for any kind of bytes.
            ///
            /// # Errors
            /// As [`Store::append_bytes`](crate::Store::append_bytes).
            pub fn append(
                &self,
                key: &str,
                value: impl AsRef<[u8]>,
            ) -> Result<(), $crate::StoreError> {
                $crate::Store::append_bytes(self, key, value.as_ref())
            }

            /// [`Store::queue_push_bytes`](crate::Store::queue_push_bytes) for any kind of bytes.
            ///
            /// # Errors
            /// As [`Store::queue_push_bytes`](crate::Store::queue_push_bytes).
            pub fn queue_push(
                &self,
                key: &str,
                value: impl AsRef<[u8]>,
            ) -> Result<(), $crate::StoreError> {
                $crate::Store::queue_push_bytes(self, key, value.as_ref())
            }
        }
    };
}
pub(crate) use takes_any_bytes;

takes_any_bytes!(impl[] dyn Store + '_);

impl dyn Store + '_ {
    /// The innermost store, which wraps no other. PyTorch's
    /// `PrefixStore._underlying_non_prefix_store`.
    pub fn innermost_store(&self) -> &dyn Store {
        let mut store = self;
        while let Some(underlying) = store.underlying_store() {
            store = underlying;
        }
        store
    }
}

fn no_queues<S: Store + ?Sized>(store: &S, operation: Operation, key: &str) -> StoreError {
    StoreError::Unsupported {
        context: ErrorContext::new(operation, [key], store.label(), Duration::ZERO),
    }
}

/// PyTorch's generic barrier (`Store::barrier`), for stores without a barrier command. It uses other
/// keys than the TCP server's command. In PyTorch a world size of 0 never completes, since the last
/// arrival is recognized by equality; here it is refused.
pub(crate) fn generic_barrier<S: Store + ?Sized>(
    store: &S,
    key: &str,
    world_size: usize,
    timeout: Option<Duration>,
) -> Result<(), StoreError> {
    if world_size == 0 {
        let key = store.full_key(key);
        let keys = [key.as_str()];
        return Err(StoreError::InvalidArgument {
            context: ErrorContext::new(Operation::Barrier, keys, store.label(), Duration::ZERO),
            detail: "the world size of a barrier must be at least 1".to_owned(),
        });
    }
    let arrived = store.add(&format!("{key}/num_members"), 1)?;
    let last_member = format!("{key}/last_member");
    if i64::try_from(world_size) == Ok(arrived) {
        store.set_bytes(&last_member, b"1")?;
    }
    match store.wait_timeout(&[&last_member], timeout) {
        Err(StoreError::Timeout { context, timeout }) => Err(StoreError::BarrierTimeout {
            context: context.for_operation(Operation::Barrier, &store.full_key(key)),
            timeout,
            world_size,
            arrived: store.add(&format!("{key}/num_members"), 0).ok(),
        }),
        Err(StoreError::Interrupted { context, outcome }) => {
            let context = context.for_operation(Operation::Barrier, &store.full_key(key));
            Err(StoreError::interrupted(context, outcome))
        }
        other => other,
    }
}

/// The pause before another wait for a queue whose element another worker has taken, or whose name has a
/// value, which ends each wait at once.
const LOST_RACE_PAUSE: Duration = Duration::from_millis(1);

/// `queue_take` of stores that take one element at a time.
pub(crate) fn generic_queue_take<S: Store + ?Sized>(
    store: &S,
    key: &str,
    max: usize,
    timeout: Option<Duration>,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let started = Instant::now();
    let deadline = Deadline::after(started, timeout);
    let full_key = store.full_key(key);
    let context = |elapsed| {
        let keys = [full_key.as_str()];
        ErrorContext::new(Operation::QueueTake, keys, store.label(), elapsed)
    };
    check_take_max(max, || context(Duration::ZERO))?;
    let mut has_waited = false;
    loop {
        let mut taken = Vec::new();
        while taken.len() < max {
            match store.try_queue_pop(key) {
                Ok(Some(element)) => taken.push(element),
                Ok(None) => break,
                // The next call fails too.
                Err(_) if !taken.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if !taken.is_empty() || timeout == Some(Duration::ZERO) {
            return Ok(taken);
        }
        if has_waited {
            thread::sleep(LOST_RACE_PAUSE);
        }
        has_waited = true;
        let now = Instant::now();
        if deadline.has_passed(now) {
            return Err(StoreError::timeout(context(now - started), timeout));
        }
        match store.wait_timeout(&[key], deadline.remaining(now)) {
            Ok(()) => {}
            Err(StoreError::Timeout { .. }) => {
                return Err(StoreError::timeout(context(started.elapsed()), timeout));
            }
            Err(StoreError::Interrupted { outcome, .. }) => {
                let context = context(started.elapsed());
                return Err(StoreError::Interrupted { context, outcome });
            }
            Err(error) => return Err(error),
        }
    }
}

/// Refuses a maximum of no elements: a server closes the connection on it.
pub(crate) fn check_take_max(
    max: usize,
    context: impl FnOnce() -> ErrorContext,
) -> Result<(), StoreError> {
    if max > 0 {
        return Ok(());
    }
    Err(StoreError::InvalidArgument {
        context: context(),
        detail: "the maximum of elements must be at least 1".to_owned(),
    })
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn set_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        (**self).set_bytes(key, value)
    }
    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        (**self).get(key)
    }
    fn get_timeout(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>, StoreError> {
        (**self).get_timeout(key, timeout)
    }
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        (**self).try_get(key)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        (**self).add(key, delta)
    }
    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError> {
        (**self).compare_set_bytes(key, expected, desired)
    }
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        (**self).check(keys)
    }
    fn wait(&self, keys: &[&str]) -> Result<(), StoreError> {
        (**self).wait(keys)
    }
    fn wait_timeout(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        (**self).wait_timeout(keys, timeout)
    }
    fn wait_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        (**self).wait_change(key, known, timeout)
    }
    fn wakes_on_change(&self) -> bool {
        (**self).wakes_on_change()
    }
    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        (**self).delete_key(key)
    }
    fn num_keys(&self) -> Result<u64, StoreError> {
        (**self).num_keys()
    }
    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        (**self).append_bytes(key, value)
    }
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        (**self).multi_get(keys)
    }
    fn multi_get_timeout(
        &self,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        (**self).multi_get_timeout(keys, timeout)
    }
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        (**self).multi_set(pairs)
    }
    fn queue_push_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        (**self).queue_push_bytes(key, value)
    }
    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        (**self).queue_pop(key)
    }
    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        (**self).try_queue_pop(key)
    }
    fn queue_take(
        &self,
        key: &str,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        (**self).queue_take(key, max, timeout)
    }
    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        (**self).queue_len(key)
    }
    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        (**self).list_keys()
    }
    fn barrier(&self, key: &str, world_size: usize) -> Result<(), StoreError> {
        (**self).barrier(key, world_size)
    }
    fn barrier_timeout(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        (**self).barrier_timeout(key, world_size, timeout)
    }
    fn timeout(&self) -> Option<Duration> {
        (**self).timeout()
    }
    fn set_timeout(&self, timeout: Option<Duration>) {
        (**self).set_timeout(timeout);
    }
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        (**self).clone_store()
    }
    fn close(&self) {
        (**self).close();
    }
    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store> {
        (**self).with_cancel(cancel)
    }
    fn has_extended_api(&self) -> bool {
        (**self).has_extended_api()
    }
    fn label(&self) -> String {
        (**self).label()
    }
    fn full_key(&self, key: &str) -> String {
        (**self).full_key(key)
    }
    fn underlying_store(&self) -> Option<&dyn Store> {
        (**self).underlying_store()
    }
}
