//! The operations that every store has, as an object-safe trait.
//!
//! Holds no logic besides the generic forms that PyTorch's base class defines
//! (`torch/csrc/distributed/c10d/Store.hpp`); how an operation is carried out is each store's matter.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Operation, StoreError};
use crate::known::Known;

/// The default timeout of a store, 300 s, as in PyTorch.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A key-value store that the workers of a training job share.
///
/// Keys are strings, values are bytes. All methods may be called from any number of threads; one
/// that blocks does not hold up the others.
///
/// **Timeouts** mean the same in every store of this crate: [`Duration::ZERO`] looks once,
/// [`Duration::MAX`] waits for ever. (PyTorch's stores disagree about zero: its TCPStore looks
/// once, its HashStore and FileStore wait for ever.)
///
/// The behaviour follows PyTorch's `c10d::Store`; where a method says nothing else, it blocks for
/// at most [`timeout`](Self::timeout).
///
/// ```
/// use c10d_store::{HashStore, Store};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let store = HashStore::new();
/// store.set("epoch", b"3")?;
/// assert_eq!(store.get("epoch")?, b"3");
/// assert_eq!(store.add("arrived", 1)?, 1);
/// # Ok(())
/// # }
/// ```
pub trait Store: Debug + Send + Sync {
    /// Creates `key` or replaces its value, and wakes whoever waits for it.
    ///
    /// Over TCP nothing answers a `set`: it returns once the bytes are handed to the system. A
    /// later operation on the same store sees it; another client may not see it yet.
    ///
    /// # Errors
    /// When the store cannot be reached or the key or value exceeds a limit.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// The value of `key`, waiting for the key to appear for at most [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when the key did not appear; otherwise as [`set`](Self::set).
    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError>;

    /// Adds `delta` to the number at `key` (decimal text; a missing key counts as 0) and returns
    /// the sum. Overflow wraps.
    ///
    /// # Errors
    /// [`StoreError::NotANumber`] when the present value is not a number (PyTorch's server closes
    /// the connection in that case: [`StoreError::ConnectionLost`]).
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError>;

    /// Writes `desired` if the value of `key` equals `expected`, or if the key is missing and
    /// `expected` is empty. Returns the value that the key has now; for a missing key whose
    /// `expected` was not empty, returns `expected` and stores nothing.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError>;

    /// Whether every key is present, without waiting. True for no keys.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError>;

    /// Waits until every key is present, for at most [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when one did not appear.
    fn wait(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.wait_timeout(keys, self.timeout())
    }

    /// Waits until every key is present, for at most `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when one did not appear.
    fn wait_timeout(&self, keys: &[&str], timeout: Duration) -> Result<(), StoreError>;

    /// Waits until `key` has a value that differs from what is `known` of it, and returns that value,
    /// for at most `timeout`. At once if it differs already. A missing key is waited for.
    ///
    /// What counts is the value as it is when the store looks. One that changes and changes back
    /// between two looks can pass unseen, more so where [`wakes_on_change`](Self::wakes_on_change) is
    /// false.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use c10d_store::{HashStore, Known, Store};
    ///
    /// # fn main() -> Result<(), c10d_store::StoreError> {
    /// let store = HashStore::new();
    /// store.set("state", b"round 7, beat 1")?;
    /// let seen = store.wait_change("state", Known::nothing(), Duration::ZERO)?;
    /// assert_eq!(seen, b"round 7, beat 1");
    ///
    /// store.set("state", b"round 7, beat 2")?; // of no interest to who looks at the round only
    /// let round = Known::part(&seen, 0..7);
    /// let unchanged = store.wait_change("state", round, Duration::from_millis(1));
    /// assert!(unchanged.unwrap_err().is_timeout());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when no such value was seen in time; otherwise as [`set`](Self::set),
    /// the known bytes being the value.
    fn wait_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Duration,
    ) -> Result<Vec<u8>, StoreError>;

    /// Whether [`wait_change`](Self::wait_change) returns as soon as the value differs, or some
    /// milliseconds later. If not, it asks once a second, as a PyTorch server leaves nothing else to
    /// do.
    fn wakes_on_change(&self) -> bool;

    /// Removes `key`; whether it was there ([`FileStore`](crate::FileStore) too, unlike PyTorch's,
    /// which always says yes).
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn delete_key(&self, key: &str) -> Result<bool, StoreError>;

    /// The number of keys with a value in the whole store, the store's own bookkeeping included.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn num_keys(&self) -> Result<u64, StoreError>;

    /// Appends `value` to the value of `key`, creating the key if it is missing.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// The values of all `keys`, in their order, waiting until every one is present.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when one did not appear.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError>;

    /// Sets all pairs, from left to right.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError>;

    /// Puts `value` at the tail of the queue `key`.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] where the store has no queues.
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let _ = value;
        Err(StoreError::unsupported(Operation::QueuePush, key, self))
    }

    /// Takes the head of the queue `key`, waiting for one for at most [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when nothing was pushed in time; [`StoreError::QueueEmpty`] when
    /// another worker took the element first (only against PyTorch's server);
    /// [`StoreError::Unsupported`] where the store has no queues.
    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::unsupported(Operation::QueuePop, key, self))
    }

    /// Takes the head of the queue `key` if there is one, without waiting.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] where the store has no queues.
    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Err(StoreError::unsupported(Operation::QueuePop, key, self))
    }

    /// The number of elements in the queue `key`; 0 for an unknown one.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] where the store has no queues.
    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        Err(StoreError::unsupported(Operation::QueueLen, key, self))
    }

    /// All keys that have a value, in no particular order. A key that is not UTF-8 comes back with
    /// replacement characters.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn list_keys(&self) -> Result<Vec<String>, StoreError>;

    /// Waits until `world_size` workers have called `barrier` with this `key`, for at most
    /// `timeout` (`None`: [`timeout`](Self::timeout)).
    ///
    /// A key serves once: a completed barrier stays open. An arrival that timed out has been
    /// counted all the same. Workers that go through a [`PrefixStore`](crate::PrefixStore) and
    /// workers that do not never meet, as in PyTorch.
    ///
    /// # Errors
    /// [`StoreError::BarrierTimeout`] when not all arrived in time.
    fn barrier(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError>;

    /// How long the operations that wait do so by default.
    fn timeout(&self) -> Duration;

    /// Changes the default timeout of later calls, on this handle and on every wrapper around it.
    fn set_timeout(&self, timeout: Duration);

    /// A second, independent handle to the same store.
    ///
    /// # Errors
    /// When the store cannot be reached, or this handle has been [closed](Self::close).
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError>;

    /// Ends this handle: calls of it that are under way in other threads fail at once with
    /// [`StoreError::Closed`], and so do all later ones. The store itself and other handles of it,
    /// [clones](Self::clone_store) included, go on. A wrapper closes the handle that it wraps. Does
    /// not block.
    fn close(&self);

    /// Whether `append`, `multi_get` and `multi_set` are single operations of the store itself.
    fn has_extended_api(&self) -> bool;

    /// What this store is, for error messages: `TCP store 10.0.0.1:29500`, `hash store`.
    fn label(&self) -> String;

    /// What errors call `key`: the key below all the prefixes that wrappers put before it.
    fn full_key(&self, key: &str) -> String {
        key.to_owned()
    }
}

/// PyTorch's generic barrier, for stores without one of their own
/// (`Store::barrier`): other keys than the TCP server's command, and
/// "arrived last" is an equality, so a world size of 0 never completes there. Here it is refused.
pub(crate) fn generic_barrier<S: Store + ?Sized>(
    store: &S,
    key: &str,
    world_size: usize,
    timeout: Option<Duration>,
) -> Result<(), StoreError> {
    if world_size == 0 {
        return Err(StoreError::invalid_argument(
            Operation::Barrier,
            &store.full_key(key),
            store,
            "the world size of a barrier must be at least 1",
        ));
    }
    let timeout = timeout.unwrap_or_else(|| store.timeout());
    let arrived = store.add(&format!("{key}/num_members"), 1)?;
    let last_member = format!("{key}/last_member");
    if i64::try_from(world_size) == Ok(arrived) {
        store.set(&last_member, b"1")?;
    }
    match store.wait_timeout(&[&last_member], timeout) {
        Err(StoreError::Timeout { context, timeout }) => Err(StoreError::BarrierTimeout {
            context: context.for_operation(Operation::Barrier, &store.full_key(key)),
            timeout,
            world_size,
            arrived: store.add(&format!("{key}/num_members"), 0).ok(),
        }),
        other => other,
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        (**self).set(key, value)
    }
    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        (**self).get(key)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        (**self).add(key, delta)
    }
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        (**self).compare_set(key, expected, desired)
    }
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        (**self).check(keys)
    }
    fn wait(&self, keys: &[&str]) -> Result<(), StoreError> {
        (**self).wait(keys)
    }
    fn wait_timeout(&self, keys: &[&str], timeout: Duration) -> Result<(), StoreError> {
        (**self).wait_timeout(keys, timeout)
    }
    fn wait_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Duration,
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
    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        (**self).append(key, value)
    }
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        (**self).multi_get(keys)
    }
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        (**self).multi_set(pairs)
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        (**self).queue_push(key, value)
    }
    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        (**self).queue_pop(key)
    }
    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        (**self).try_queue_pop(key)
    }
    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        (**self).queue_len(key)
    }
    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        (**self).list_keys()
    }
    fn barrier(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        (**self).barrier(key, world_size, timeout)
    }
    fn timeout(&self) -> Duration {
        (**self).timeout()
    }
    fn set_timeout(&self, timeout: Duration) {
        (**self).set_timeout(timeout);
    }
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        (**self).clone_store()
    }
    fn close(&self) {
        (**self).close();
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
}
