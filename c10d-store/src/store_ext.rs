//! The operations that follow from the operations of [`Store`], for every store.

use std::time::{Duration, Instant};

use crate::compare_set::CompareSet;
use crate::error::{Operation, StoreError};
use crate::known::Known;
use crate::store::{Store, context};

/// The operations of every store, for any kind of bytes (strings, arrays, vectors) and with time limits as
/// `Duration`, `Option<Duration>` or `None`. Each is one operation of [`Store`], which cannot be generic, so that
/// `dyn Store` exists. Errors are the errors of [`Store`] and the errors that a method names. A waiting method
/// without a time limit waits for at most the default [`timeout`](crate::StoreHandle::timeout) of the store.
///
/// ```
/// use c10d_store::{HashStore, Store, StoreExt};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let store = HashStore::new();
/// store.set("epoch", "3")?;
/// assert_eq!(store.get("epoch")?, b"3");
/// assert_eq!(store.try_get("round")?, None); // does not wait
/// # Ok(())
/// # }
/// ```
///
/// # Writes
///
/// The meaning of `Ok` from [`set`](Self::set), [`append`](Self::append), [`queue_push`](Self::queue_push) and
/// [`Store::multi_set`] for a TCP store depends on its server:
///
/// - A server of this crate with a [memory limit](crate::ServerOptions::memory_max), such as a server of
///   `c10d store serve` or `c10d run`: the write was carried out. This costs a round trip. A write for which there is
///   no memory fails with [`StoreError::MemoryFull`], which has changed nothing, and the store stays usable.
/// - A server of this crate without a limit: the write was sent. The server refuses no write because of its memory.
/// - PyTorch's server: the write was sent. If the server refuses it, it closes the connection, and the next call
///   fails with [`StoreError::ConnectionLost`]: the write is lost. Release 0.2 of this crate does the same, even
///   after it has taken over a store in etcd.
/// - Any server, for a store that [reconnects](crate::TcpStoreOptions::with_reconnect): the write was carried out.
///
/// A later call on the same handle, such as [`Store::check`] of no keys, sees the write if it succeeds.
///
/// # Numbers
///
/// [`Store::add`] keeps decimal text; a missing key counts as 0, and overflow wraps. If the value is not a number it
/// fails with [`StoreError::NotANumber`], and for a new key for which the server has no memory with
/// [`StoreError::MemoryFull`]; the store stays usable.
///
/// ```
/// # use c10d_store::{HashStore, Store};
/// let store = HashStore::new();
/// assert_eq!(store.add("arrived", 1)?, 1);
/// assert_eq!(store.add("arrived", 0)?, 1);
/// # Ok::<(), c10d_store::StoreError>(())
/// ```
///
/// # Queues
///
/// The methods `queue_..` and `try_queue_pop` fail with [`StoreError::Unsupported`] if the store has none.
///
/// [`Store::queue_pop`] fails with [`StoreError::Timeout`] if nothing was pushed in time, and with
/// [`StoreError::QueueEmpty`] if another worker took the element first (only on PyTorch's server).
/// [`Store::try_queue_pop`] does not wait.
///
/// # Prefixes
///
/// [`Store::delete_prefix`] deletes the values and queues of all names that begin with `prefix`, except names
/// that are written in the meantime. Returns the number of names, when all are deleted. Waiting calls continue.
///
/// With a `delay` that is not zero, this returns 0 at once, and the names that begin with the prefix then are deleted after
/// that time; a later call with the same prefix replaces the delay. A store with a journal remembers the delay, which
/// begins again when its server starts.
///
/// It fails with [`StoreError::Unsupported`] on other stores than TCP stores with a server of this crate,
/// [`StoreError::InvalidArgument`] for an empty prefix, [`StoreError::LimitExceeded`] if 4096 prefixes are deleted
/// later.
///
/// [`Store::end_waits`] fails all calls, of all clients, that wait for a key, a barrier or a queue whose name begins
/// with `prefix`: they return at once with [`StoreError::WaitEnded`], and calls of PyTorch's clients fail with a
/// `DistStoreError`. Returns the number of calls. The stores stay usable. An arrival at a barrier stays counted.
///
/// A call that starts later waits. A call also waits if it gives way to other calls of its process at that moment, or
/// if its server lacks this operation: if it must not miss the end, also change a value that the call reads.
///
/// It fails with [`StoreError::Unsupported`] on other stores than TCP stores with a server of this crate.
///
/// # Ephemeral keys
///
/// [`Store::keep_alive`] reports that this process is alive. From now on its [ephemeral keys](Self::set_ephemeral)
/// also expire when it sets no such key and reports nothing for `silence_max`, which the server detects within 250
/// ms; `None` for no such limit. Call it at least three times in each `silence_max`. Returns `false` if its keys have
/// expired by silence, or with their connection, since the last report: then set them again.
///
/// It fails with the errors of [`set_ephemeral`](Self::set_ephemeral).
pub trait StoreExt: Store {
    /// Creates `key` or replaces its value: [`Store::multi_set`] of one pair.
    ///
    /// # Errors
    /// The errors of [`Store`]; the meaning of `Ok` depends on the server, see [writes](Self#writes).
    fn set(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.multi_set(&[(key, value.as_ref())])
    }

    /// Appends `value` to the value of `key`, creating the key if it is missing.
    ///
    /// # Errors
    /// The errors of [`Store`]; the meaning of `Ok` depends on the server, see [writes](Self#writes).
    fn append(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.append_bytes(key, value.as_ref())
    }

    /// Writes `desired` if the value of `key` equals `expected`, or if the key is missing and
    /// `expected` is empty. Returns the resulting value and, if the store reports it, whether this call
    /// wrote it: see [`CompareSet`].
    ///
    /// ```
    /// use c10d_store::{HashStore, StoreExt};
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
    /// The errors of [`Store`], including [`StoreError::MemoryFull`].
    fn compare_set(
        &self,
        key: &str,
        expected: impl AsRef<[u8]>,
        desired: impl AsRef<[u8]>,
    ) -> Result<CompareSet, StoreError> {
        self.compare_set_bytes(key, expected.as_ref(), desired.as_ref())
    }

    /// Returns the value of `key`. Waits until the key exists, for at most the store's timeout.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the key did not appear.
    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.get_timeout(key, self.timeout())
    }

    /// Returns the value of `key`. Waits until the key exists, for at most `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the key did not appear.
    fn get_timeout(
        &self,
        key: &str,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Vec<u8>, StoreError> {
        let mut values = self.get_all(&[key], timeout.into())?;
        Ok(values.pop().unwrap_or_default())
    }

    /// Returns the values of all `keys`, in order. Waits until every key exists, for at most the store's timeout.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if a key did not appear.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.get_all(keys, self.timeout())
    }

    /// Returns the values of all `keys`, in order. Waits until every key exists, for at most `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if a key did not appear.
    fn multi_get_timeout(
        &self,
        keys: &[&str],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.get_all(keys, timeout.into())
    }

    /// Waits until every key exists, for at most the store's timeout.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if a key did not appear.
    fn wait(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.wait_all(keys, self.timeout())
    }

    /// Waits until every key exists, for at most `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if a key did not appear.
    fn wait_timeout(
        &self,
        keys: &[&str],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<(), StoreError> {
        self.wait_all(keys, timeout.into())
    }

    /// Waits until the value of `key` differs from the `known` value, for at most `timeout`, and returns it. Returns
    /// at once if it already differs. Waits for a missing key.
    ///
    /// A value that changes and changes back between two checks can go unnoticed, more so where the store has no
    /// [prompt watch](Store::has_prompt_watch).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use c10d_store::{HashStore, Known, StoreExt};
    ///
    /// # fn main() -> Result<(), c10d_store::StoreError> {
    /// let store = HashStore::new();
    /// store.set("state", b"round 7, beat 1")?;
    /// let seen = store.wait_change("state", Known::nothing(), Duration::ZERO)?;
    /// assert_eq!(seen, b"round 7, beat 1");
    ///
    /// store.set("state", b"round 7, beat 2")?; // the round is the same
    /// let round = Known::part(&seen, 0..7);
    /// let unchanged = store.wait_change("state", round, Duration::from_millis(1));
    /// assert!(unchanged.unwrap_err().is_timeout());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the value did not change in time, [`StoreError::LimitExceeded`] for known bytes longer
    /// than a value, [`StoreError::Unsupported`] if the store cannot wait for changes.
    fn wait_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Vec<u8>, StoreError> {
        self.wait_changed(key, known, timeout.into())
    }

    /// Appends `value` to the queue `key`.
    ///
    /// # Errors
    /// The errors of [`Store`]; the meaning of `Ok` depends on the server, see [writes](Self#writes).
    fn queue_push(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.queue_push_bytes(key, value.as_ref())
    }

    /// Removes and returns the first element of the queue `key`. Waits for an element, for at most `timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use c10d_store::{HashStore, StoreError, StoreExt};
    ///
    /// # fn main() -> Result<(), StoreError> {
    /// let store = HashStore::new();
    /// store.queue_push("jobs", "a")?;
    /// assert_eq!(store.queue_pop_timeout("jobs", Duration::from_secs(1))?, b"a");
    /// let empty = store.queue_pop_timeout("jobs", Duration::ZERO);
    /// assert!(matches!(empty, Err(StoreError::QueueEmpty { .. })));
    /// let late = store.queue_pop_timeout("jobs", Duration::from_millis(1));
    /// assert!(matches!(late, Err(StoreError::Timeout { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`queue_pop`](Store::queue_pop); with a timeout of zero [`StoreError::QueueEmpty`] if the queue
    /// is empty.
    fn queue_pop_timeout(
        &self,
        key: &str,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Vec<u8>, StoreError> {
        let began = Instant::now();
        let first = self.queue_take(key, 1, timeout)?.pop();
        first.ok_or_else(|| StoreError::QueueEmpty {
            context: context(self, Operation::QueuePop, key, began.elapsed()),
        })
    }

    /// Removes and returns elements from the head of the queue `key`, at least one and at most `max`. Waits for an
    /// element, for at most `timeout`; with a timeout of zero the result may be empty. Other workers may get the
    /// elements in between only where the store takes one at a time: on PyTorch's servers.
    ///
    /// A server may return fewer elements than it has: at most 4 MiB at once, or one.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use c10d_store::{HashStore, StoreExt};
    ///
    /// # fn main() -> Result<(), c10d_store::StoreError> {
    /// let store = HashStore::new();
    /// for element in ["a", "b", "c"] {
    ///     store.queue_push("jobs", element)?;
    /// }
    /// assert_eq!(store.queue_take("jobs", 2, None)?, ["a", "b"].map(Vec::from));
    /// assert_eq!(store.queue_take("jobs", 2, None)?, ["c"].map(Vec::from));
    /// assert!(store.queue_take("jobs", 2, Duration::ZERO)?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if nothing was pushed in time, [`StoreError::NoReply`] if the server did not
    /// confirm in time that it took nothing, [`StoreError::InvalidArgument`] for a maximum of 0.
    fn queue_take(
        &self,
        key: &str,
        max: usize,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.queue_take_all(key, max, timeout.into())
    }

    /// Writes the value of `key` and owns it, or returns the present value if the key exists and this handle does not
    /// own it. Use it for a lock, the election of a leader, or a record that is written once. The key lives as long
    /// as its owner. When the process exits, the store is closed or dropped, or its connection breaks, the server
    /// deletes the key at once. If there is a `will`, a key and a value, the server also writes the will. The key of
    /// the will may be `key` itself, which then keeps the value of the will. Calls that wait for the will's key
    /// return. All keys of an owner expire in one step.
    ///
    /// The owner may set its keys again, with another value and another will. [`Store::delete_key`] by any client
    /// deletes a key without writing its will; other writes change its value only. A store owns at most 1024 keys.
    /// Its clones own separate keys.
    ///
    /// A TCP store opens another connection for its first key. If an owner survives the loss of its connection,
    /// because a call failed with an unknown outcome, its keys may have expired, and it must set them again.
    ///
    /// ```
    /// use c10d_store::{ServerOptions, Store, StoreExt, TcpStore, TcpStoreServer};
    ///
    /// # fn main() -> Result<(), c10d_store::StoreError> {
    /// # if !cfg!(feature = "extensions") { return Ok(()) }
    /// let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
    /// let port = server.local_addr().port();
    /// let [first, second] = [(); 2].map(|()| TcpStore::connect("127.0.0.1", port));
    /// let (first, second) = (first?, second?);
    /// assert_eq!(first.set_ephemeral("leader", "1", Some(("left", b"1")))?, None);
    /// assert_eq!(second.set_ephemeral("leader", "2", None)?, Some(b"1".to_vec()));
    /// drop(first);
    /// assert_eq!(second.get("left")?, b"1"); // returns when the first one has ended
    /// assert_eq!(second.set_ephemeral("leader", "2", None)?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] on other stores than TCP stores with a server of this crate,
    /// [`StoreError::LimitExceeded`] for more than 1024 keys, [`StoreError::MemoryFull`] if the server has no memory for it.
    fn set_ephemeral(
        &self,
        key: &str,
        value: impl AsRef<[u8]>,
        will: Option<(&str, &[u8])>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.set_ephemeral_bytes(key, value.as_ref(), will)
    }

    /// Waits until `world_size` workers have arrived at the barrier `key`.
    ///
    /// A key works once: a completed barrier stays open. An arrival that timed out stays counted. Workers that use a
    /// [`PrefixStore`](crate::PrefixStore) and workers that use the TCP store itself do not meet, like in PyTorch.
    ///
    /// # Errors
    /// [`StoreError::BarrierTimeout`] if not all workers arrived in time, [`StoreError::NotANumber`] if the key has a
    /// value that is not a number, [`StoreError::InvalidArgument`] for a world size of 0 (not on TCP stores).
    fn barrier(&self, key: &str, world_size: usize) -> Result<(), StoreError> {
        self.meet(key, world_size, self.timeout())
    }

    /// Waits until `world_size` workers have arrived at the barrier `key`, for at most `timeout`: see
    /// [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// The errors of [`barrier`](Self::barrier).
    fn barrier_timeout(
        &self,
        key: &str,
        world_size: usize,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<(), StoreError> {
        self.meet(key, world_size, timeout.into())
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
