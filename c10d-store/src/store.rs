//! The basic operations of a store, which all other operations are made of, as object-safe traits.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;

use crate::compare_set::CompareSet;
use crate::error::{ErrorContext, Operation, StoreError};
use crate::known::Known;

/// The default timeout of a store: 300 s, like PyTorch.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A key-value store shared by the workers of a training job: the operations that each kind of store provides.
/// Programs mostly call the methods of [`StoreExt`](crate::StoreExt), which every store has.
///
/// Keys are text, and any bytes with [`key_from_bytes`](crate::key_from_bytes); values are bytes. All methods
/// may be called from any number of threads, and a call that blocks does not delay others. The behaviour follows
/// PyTorch's `c10d::Store`.
///
/// **Timeouts** mean the same in every store of this crate: `None` waits indefinitely, and [`Duration::ZERO`] checks
/// once without waiting. (In PyTorch, zero checks once in TCPStore, and waits indefinitely in HashStore and
/// FileStore.) A method without a timeout argument blocks for at most [`StoreHandle::timeout`].
///
/// **Errors** of all methods: [`StoreError::LimitExceeded`] for a key or value that is too long,
/// [`StoreError::Closed`] after [`StoreHandle::close`], [`StoreError::Interrupted`], and the errors of reaching the
/// store: [`StoreError::ConnectionLost`], [`StoreError::NoReply`], [`StoreError::File`]. A method that writes fails
/// with [`StoreError::MemoryFull`] at the memory limit of the server. A method that waits for keys fails with
/// [`StoreError::Timeout`] if a key did not appear.
///
/// The methods from [`queue_push_bytes`](Self::queue_push_bytes) on are optional: a store without the operation fails
/// with [`StoreError::Unsupported`].
pub trait Store: StoreHandle {
    /// Creates the keys or replaces their values, from left to right, and wakes all calls that wait for them.
    ///
    /// Over TCP the server sends no reply, unless it can report that it refuses the write: the call returns once the
    /// system has accepted the bytes. A later operation through the same store observes the write; another client may
    /// not see it yet. See [writes](crate::StoreExt#writes).
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError>;

    /// Appends `value` to the value of `key`, creating the key if it is missing. Returns at the same time as
    /// `multi_set` would.
    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Adds `delta` to the number at `key`: see [`StoreExt`](crate::StoreExt#numbers).
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError>;

    /// See [`StoreExt::compare_set`](crate::StoreExt::compare_set), which takes any kind of bytes.
    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError>;

    /// Removes `key`, and returns whether it existed. (PyTorch's `FileStore` always returns true.)
    fn delete_key(&self, key: &str) -> Result<bool, StoreError>;

    /// Returns the values of all keys, in order, as soon as every key exists.
    fn get_all(&self, keys: &[&str], timeout: Option<Duration>)
    -> Result<Vec<Vec<u8>>, StoreError>;

    /// Returns the value of `key`, or `None` if the key is missing. PyTorch's servers answer a read of a missing key
    /// with an empty value: there it is also empty if the key is deleted during this call, and if `key` is a queue.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Waits until every key exists.
    fn wait_all(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError>;

    /// Returns whether every key exists. True for no keys.
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError>;

    /// Returns all keys that have a value, in no particular order. For keys that are not UTF-8, see
    /// [`key_to_bytes`](crate::key_to_bytes).
    fn list_keys(&self) -> Result<Vec<String>, StoreError>;

    /// Returns the number of keys with a value in the whole store, including the store's internal keys.
    fn num_keys(&self) -> Result<u64, StoreError>;

    /// See [`StoreExt::barrier`](crate::StoreExt::barrier), which this is with an explicit timeout.
    fn meet(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError>;

    /// See [`StoreExt::queue_push`](crate::StoreExt::queue_push), which takes any kind of bytes.
    fn queue_push_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let _ = value;
        Err(unsupported(self, Operation::QueuePush, key))
    }

    /// Removes and returns the first element of a queue, and waits for an element: see
    /// [`StoreExt`](crate::StoreExt#queues).
    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        Err(unsupported(self, Operation::QueuePop, key))
    }

    /// Removes and returns the first element of a queue, or `None` if it is empty: see
    /// [`StoreExt`](crate::StoreExt#queues).
    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Err(unsupported(self, Operation::QueuePop, key))
    }

    /// See [`StoreExt::queue_take`](crate::StoreExt::queue_take), which takes any kind of timeout.
    fn queue_take_all(
        &self,
        key: &str,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let _ = (max, timeout);
        Err(unsupported(self, Operation::QueueTake, key))
    }

    /// Returns the number of elements in the queue `key`; 0 for a missing queue.
    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        Err(unsupported(self, Operation::QueueLen, key))
    }

    /// See [`StoreExt::wait_change`](crate::StoreExt::wait_change), which takes any kind of timeout.
    fn wait_changed(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let _ = (known, timeout);
        Err(unsupported(self, Operation::WaitChange, key))
    }

    /// Returns whether [`wait_change`](crate::StoreExt::wait_change) returns within milliseconds of a change: not on
    /// PyTorch's servers.
    fn has_prompt_watch(&self) -> bool {
        false
    }

    /// Deletes all names that begin with `prefix`: see [`StoreExt`](crate::StoreExt#prefixes).
    fn delete_prefix(&self, prefix: &str, delay: Duration) -> Result<u64, StoreError> {
        let _ = delay;
        Err(unsupported(self, Operation::DeletePrefix, prefix))
    }

    /// Ends the calls that wait for a name that begins with `prefix`: see [`StoreExt`](crate::StoreExt#prefixes).
    fn end_waits(&self, prefix: &str) -> Result<u64, StoreError> {
        Err(unsupported(self, Operation::EndWaits, prefix))
    }

    /// See [`StoreExt::set_ephemeral`](crate::StoreExt::set_ephemeral), which takes any kind of bytes.
    fn set_ephemeral_bytes(
        &self,
        key: &str,
        value: &[u8],
        will: Option<(&str, &[u8])>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let _ = (value, will);
        Err(unsupported(self, Operation::SetEphemeral, key))
    }

    /// Reports that this process is alive: see [`StoreExt`](crate::StoreExt#ephemeral-keys).
    fn keep_alive(&self, silence_max: Option<Duration>) -> Result<bool, StoreError> {
        let _ = silence_max;
        let context = ErrorContext::new(Operation::KeepAlive, [], self.label(), Duration::ZERO);
        Err(StoreError::Unsupported { context })
    }

    /// Sends a request to a process group, for `Membership` of the crate c10d-membership. A request that waits is a
    /// poll, and is answered when there is news; `None` if there is no news in time. The answer is the reply and the list of
    /// docs/spec/wire-extensions.md, section 9.13.
    fn ask_group(
        &self,
        group: &str,
        request: &[u8],
        waits: bool,
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        let _ = (request, waits, timeout);
        Err(unsupported(self, Operation::Membership, group))
    }
}

/// The handle of a store: its label, its timeout, and closing it.
pub trait StoreHandle: Debug + Send + Sync {
    /// Returns the store's name in error messages: `TCP store 10.0.0.1:29500`, `hash store`.
    fn label(&self) -> String;

    /// Returns `key` with all prefixes of wrappers, which is the form of keys in error messages.
    fn full_key(&self, key: &str) -> String {
        key.to_owned()
    }

    /// Returns the store that this one wraps; `None` if this is not a wrapper. PyTorch's
    /// `PrefixStore.underlying_store`.
    fn underlying_store(&self) -> Option<&dyn Store> {
        None
    }

    /// Fails in a forked child of the process that opened the handle, where all its operations fail. Does not block.
    ///
    /// # Errors
    /// [`StoreError::OtherProcess`] in a forked child.
    fn check_process(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the default timeout, for operations without a timeout argument; `None` waits indefinitely.
    fn timeout(&self) -> Option<Duration>;

    /// Sets the default timeout of later calls on this handle and on every wrapper around it.
    fn set_timeout(&self, timeout: Option<Duration>);

    /// Creates a second, independent handle to the same store, with the same default timeout.
    ///
    /// # Errors
    /// [`StoreError::Connect`] or [`StoreError::File`] if the store cannot be reached,
    /// [`StoreError::Closed`] after [`close`](Self::close).
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError>;

    /// Returns the same handle whose calls `cancel` interrupts: waiting calls, and calls whose answer does not
    /// arrive, fail with [`StoreError::Interrupted`]. The store stays usable, with another `Cancel`. Calls of this
    /// value are not affected.
    ///
    /// A call whose value is present, or arrives at the same time, still returns the value. This needs no connection.
    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store>;

    /// Closes this handle: its calls in progress in other threads fail at once with [`StoreError::Closed`], and so do
    /// all later calls. The store and its other handles, including [clones](Self::clone_store), continue. A wrapper
    /// closes the handle that it wraps. Does not block.
    fn close(&self);
}

fn unsupported<S: Store + ?Sized>(store: &S, operation: Operation, key: &str) -> StoreError {
    StoreError::Unsupported {
        context: context(store, operation, key, Duration::ZERO),
    }
}

pub(crate) fn context<S: Store + ?Sized>(
    store: &S,
    operation: Operation,
    key: &str,
    elapsed: Duration,
) -> ErrorContext {
    let key = store.full_key(key);
    ErrorContext::new(operation, [key.as_str()], store.label(), elapsed)
}

/// Implements operations of [`Store`] for a store that wraps another store. `METHOD(ARGUMENT) OPERATION(..) -> T`
/// calls `self.METHOD(ARGUMENT, request)`, where `request` carries out the operation on the store and with the
/// argument that the method passes to it. A value in brackets, such as `METHOD[VALUE](ARGUMENT)`, is passed before
/// the argument.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_store {
    ($(
        $(#[$attribute:meta])*
        $method:ident $([$value:expr])? ($($replaced:ident)?)
        $operation:ident($($argument:ident: $type:ty),*) -> $result:ty;
    )*) => {$(
        $(#[$attribute])*
        fn $operation(&self, $($argument: $type),*) -> Result<$result, $crate::StoreError> {
            self.$method($($value,)? $($replaced,)? |store $(, $replaced)?| {
                store.$operation($($argument),*)
            })
        }
    )*};
}
