//! What a store does itself: the operations of which all others are made, as object-safe traits.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;

use crate::compare_set::CompareSet;
use crate::ephemeral::Ephemeral;
use crate::error::StoreError;
use crate::groups::Groups;
use crate::prefixes::Prefixes;
use crate::queues::Queues;
use crate::watch::Watch;

/// The default timeout of a store: 300 s, as in PyTorch.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A key-value store shared by the workers of a training job: the operations that each kind of store provides.
/// Programs mostly call those of [`StoreExt`](crate::StoreExt), which every store has.
///
/// Keys are text, and any bytes with [`key_from_bytes`](crate::key_from_bytes); values are bytes. All methods
/// may be called from any number of threads, and a call that blocks does not delay others. The behaviour follows
/// PyTorch's `c10d::Store`.
///
/// **Timeouts** mean the same in every store of this crate: `None` waits indefinitely, and
/// [`Duration::ZERO`] checks once without waiting. (In PyTorch, zero checks once in TCPStore, and
/// waits indefinitely in HashStore and FileStore.) A method without one blocks for at most
/// [`StoreHandle::timeout`].
///
/// **Errors** of all methods: [`StoreError::LimitExceeded`] for a key or value that is too long,
/// [`StoreError::Closed`] after [`StoreHandle::close`], [`StoreError::Interrupted`], and those of reaching the store:
/// [`StoreError::ConnectionLost`], [`StoreError::NoReply`], [`StoreError::File`]. A method that waits for keys fails
/// with [`StoreError::Timeout`] if one did not appear.
pub trait Store: StoreHandle {
    /// Creates the keys or replaces their values, from left to right, and wakes all calls that wait for them.
    ///
    /// Over TCP the server sends no reply: the call returns once the system has accepted the bytes. A
    /// later operation on the same store sees the write; another client may not see it yet.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError>;

    /// Appends `value` to the value of `key`, creating the key if it is missing. Returns as `multi_set` does.
    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Adds `delta` to the number at `key`: see [`StoreExt`](crate::StoreExt#numbers).
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError>;

    /// [`StoreExt::compare_set`](crate::StoreExt::compare_set).
    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError>;

    /// Removes `key`, and returns whether it existed. (PyTorch's `FileStore` always returns true.)
    fn delete_key(&self, key: &str) -> Result<bool, StoreError>;

    /// The values of all keys, in order, as soon as every one exists.
    fn get_all(&self, keys: &[&str], timeout: Option<Duration>)
    -> Result<Vec<Vec<u8>>, StoreError>;

    /// The value of `key`, or `None` if the key is missing. PyTorch's servers answer a read of a missing key with an
    /// empty value: there it is also empty if the key is deleted during this call, and if `key` is a queue.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Waits until every key exists.
    fn wait_all(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError>;

    /// Whether every key exists. True for no keys.
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError>;

    /// All keys that have a value, in no particular order. For keys that are not UTF-8 see
    /// [`key_to_bytes`](crate::key_to_bytes).
    fn list_keys(&self) -> Result<Vec<String>, StoreError>;

    /// The number of keys with a value in the whole store, including the store's internal keys.
    fn num_keys(&self) -> Result<u64, StoreError>;

    /// [`StoreExt::barrier`](crate::StoreExt::barrier) with this timeout.
    fn meet(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError>;

    /// The store's queues, if it has any.
    fn queues(&self) -> Option<&dyn Queues> {
        None
    }

    /// The store's way to wait for a change, if it has one.
    fn watch(&self) -> Option<&dyn Watch> {
        None
    }

    /// The store's operations on all names with a prefix, if it has any.
    fn prefixes(&self) -> Option<&dyn Prefixes> {
        None
    }

    /// The store's process groups, if it has any.
    fn groups(&self) -> Option<&dyn Groups> {
        None
    }

    /// The store's keys that end with their owner, if it has any.
    fn ephemeral(&self) -> Option<&dyn Ephemeral> {
        None
    }
}

/// One handle to a store: what it is called, how long its calls may take, and how it ends.
pub trait StoreHandle: Debug + Send + Sync {
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

    /// The same handle, whose calls `cancel` ends: those that wait, and others whose answer does not arrive, fail with
    /// [`StoreError::Interrupted`]. The store stays usable, with another `Cancel`. The calls of this value end as before.
    ///
    /// A value that is present, or that arrives at the same time, is returned. Costs no connection.
    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store>;

    /// Closes this handle: its calls in progress in other threads fail at once with
    /// [`StoreError::Closed`], and so do all later ones. The store and its other handles, including
    /// [clones](Self::clone_store), continue. A wrapper closes the handle that it wraps. Does not block.
    fn close(&self);
}
