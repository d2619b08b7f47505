//! The operations of a store: operations that return at once, operations that wait for other workers, and operations on
//! ephemeral keys, which only servers of `c10d` have; and the functions that free their results.
//!
//! Each operation that waits has a time limit and may be cancelled.

use std::time::Duration;

use c10d_store::{Known, StoreExt, key_to_bytes};

use crate::border::{Buffer, BufferList, BytesArray, Counted, DataPointer, KeyPointer, exported};
use crate::cancel::CancelHandle;
use crate::failure::Failure;
use crate::interface::{self, operations};
use crate::options::explicit_timeout;
use crate::store::{StoreHandle, as_strs};

/// Whether a `c10d_store_compare_set` wrote its value.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    non_camel_case_types,
    reason = "the names of C, so that both sides can be searched"
)]
pub enum Swapped {
    /// The key had another value than expected.
    #[default]
    C10D_SWAPPED_NO = 0,
    /// This call wrote the value.
    C10D_SWAPPED_YES = 1,
    /// The key has the desired value: this call wrote it, or it had it before. Only on PyTorch's servers, whose replies
    /// do not tell.
    C10D_SWAPPED_UNKNOWN = 2,
}

impl From<Option<bool>> for Swapped {
    fn from(swapped: Option<bool>) -> Self {
        match swapped {
            Some(false) => Self::C10D_SWAPPED_NO,
            Some(true) => Self::C10D_SWAPPED_YES,
            None => Self::C10D_SWAPPED_UNKNOWN,
        }
    }
}

/// Whether there is a value, and the value.
fn found(value: Option<Vec<u8>>) -> (bool, Option<Vec<u8>>) {
    (value.is_some(), value)
}

exported! {
    /// Frees a buffer and sets it to zero. Null, a buffer of zeros and a freed buffer are ignored. Do not free a copy
    /// of a freed buffer.
    pub extern "C" fn c10d_buffer_free(buffer: Option<&mut Buffer>) {
        interface::guarded((), || drop(buffer.map(Buffer::take)));
    }

    /// Frees a list and all its buffers, and sets it to zero. Otherwise as `c10d_buffer_free`.
    pub extern "C" fn c10d_buffer_list_free(list: Option<&mut BufferList>) {
        interface::guarded((), || {
            if let Some(list) = list {
                for buffer in &mut list.take() {
                    drop(buffer.take());
                }
            }
        });
    }
}

operations! {
    /// Creates the key or replaces its value, and wakes all calls that wait for it. Over TCP a server with a memory limit
    /// confirms it, or refuses it with `C10D_ERROR_MEMORY_FULL`. A server without a limit sends no reply: a later call on the
    /// same handle sees the value.
    fn c10d_store_set(store: Option<&StoreHandle>, key: KeyPointer[key_len], value: DataPointer[value_len]) =
        store.store.set(&store.key(&key)?, value.read()?)?;

    /// The value of a key, without waiting for it: `found` is false and the value is empty if the key is missing.
    fn c10d_store_try_get(store: Option<&StoreHandle>, key: KeyPointer[key_len]) -> found: bool, value: Buffer =
        self::found(store.store.try_get(&store.key(&key)?)?);

    /// Adds `delta` to the decimal number at the key, and writes the sum to `sum`, which may be null. A missing key counts
    /// as 0. Overflow wraps.
    fn c10d_store_add(store: Option<&StoreHandle>, key: KeyPointer[key_len], delta: i64) -> sum(or_null): i64 =
        store.store.add(&store.key(&key)?, delta)?;

    /// Writes `desired` if the value of the key equals `expected`, or if the key is missing and `expected` is empty. Writes
    /// the resulting value to `value`, and to `swapped` whether this call wrote it; each of them may be null. For a
    /// missing key and a non-empty `expected` the value is `expected`, and the key is still missing.
    fn c10d_store_compare_set(
        store: Option<&StoreHandle>,
        key: KeyPointer[key_len],
        expected: DataPointer[expected_len],
        desired: DataPointer[desired_len],
    ) -> swapped(or_null): Swapped, value(or_null): Buffer = {
        let result = store.store.compare_set(&store.key(&key)?, expected.read()?, desired.read()?)?;
        (result.swapped(), result.into_value())
    };

    /// Whether all keys exist, without waiting for them. True for no keys.
    fn c10d_store_check(store: Option<&StoreHandle>, keys: BytesArray[key_count]) -> all_exist: bool =
        store.store.check(&as_strs(&store.keys(keys.read()?)?))?;

    /// Removes a key, and writes to `existed`, which may be null, whether it existed.
    fn c10d_store_delete_key(store: Option<&StoreHandle>, key: KeyPointer[key_len]) -> existed(or_null): bool =
        store.store.delete_key(&store.key(&key)?)?;

    /// The number of keys with a value in the whole store, including those outside of a prefix and the store's own.
    fn c10d_store_num_keys(store: Option<&StoreHandle>) -> count: u64 = store.store.num_keys()?;

    /// All keys that have a value, in no particular order, of a prefix store those below its prefix. Free the list with
    /// `c10d_buffer_list_free`.
    fn c10d_store_list_keys(store: Option<&StoreHandle>) -> keys: BufferList = {
        let keys = store.store.list_keys()?;
        keys.iter().map(|key| key_to_bytes(key).into_owned()).collect::<Vec<_>>()
    };

    /// Appends to the value of the key, and creates it if it is missing.
    fn c10d_store_append(store: Option<&StoreHandle>, key: KeyPointer[key_len], value: DataPointer[value_len]) =
        store.store.append(&store.key(&key)?, value.read()?)?;

    /// Sets the value of each key, from first to last: `values` has as many elements as `keys`.
    fn c10d_store_multi_set(store: Option<&StoreHandle>, keys: BytesArray, values: BytesArray, count: usize) = {
        let (keys, values) = (Counted::new(keys, count, "keys"), Counted::new(values, count, "values"));
        let (keys, values) = (store.keys(keys.read()?)?, values.read()?);
        let pairs = keys.iter().zip(values).map(|(key, value)| Ok((&**key, value.read("a value")?)));
        store.store.multi_set(&pairs.collect::<Result<Vec<_>, Failure>>()?)?
    };

    /// Appends a value to a queue.
    fn c10d_store_queue_push(store: Option<&StoreHandle>, key: KeyPointer[key_len], value: DataPointer[value_len]) =
        store.store.queue_push(&store.key(&key)?, value.read()?)?;

    /// Removes and returns the first element of a queue, without waiting for one: `found` is false and the value is empty
    /// if the queue is empty.
    fn c10d_store_try_queue_pop(
        store: Option<&StoreHandle>, key: KeyPointer[key_len],
    ) -> found: bool, value: Buffer = self::found(store.store.try_queue_pop(&store.key(&key)?)?);

    /// The number of elements in a queue; 0 for a missing one.
    fn c10d_store_queue_len(store: Option<&StoreHandle>, key: KeyPointer[key_len]) -> count: u64 =
        store.store.queue_len(&store.key(&key)?)?;
}

operations! {
    /// The value of a key. Waits until it exists. Free the value with `c10d_buffer_free`.
    fn c10d_store_get(store: Option<&StoreHandle>, key: KeyPointer[key_len]; wait) -> value: Buffer = {
        let (waiting, timeout) = store.waiting(wait)?;
        waiting.get_timeout(&store.key(&key)?, timeout)?
    };

    /// Waits until all keys exist. The server notifies the waiting call, so only file stores poll.
    fn c10d_store_wait(store: Option<&StoreHandle>, keys: BytesArray[key_count]; wait) = {
        let (waiting, timeout) = store.waiting(wait)?;
        waiting.wait_timeout(&as_strs(&store.keys(keys.read()?)?), timeout)?
    };

    /// Waits until the value of a key differs from `known`, and returns it; at once if it differs already. A missing
    /// key is waited for. With `known` null, any value differs. PyTorch's servers do not tell of changes: there it
    /// polls once a second.
    fn c10d_store_wait_change(
        store: Option<&StoreHandle>, key: KeyPointer[key_len], known: DataPointer[known_len]; wait
    ) -> value: Buffer = {
        let bytes = known.read()?;
        let known = if known.is_null() { Known::nothing() } else { Known::whole(bytes) };
        let (waiting, timeout) = store.waiting(wait)?;
        waiting.wait_change(&store.key(&key)?, known, timeout)?
    };

    /// The values of all keys, in their order. Waits until all exist. Free the list with `c10d_buffer_list_free`.
    fn c10d_store_multi_get(store: Option<&StoreHandle>, keys: BytesArray[key_count]; wait) -> values: BufferList = {
        let (waiting, timeout) = store.waiting(wait)?;
        waiting.multi_get_timeout(&as_strs(&store.keys(keys.read()?)?), timeout)?
    };

    /// Removes and returns the first element of a queue. Waits for one. Free it with `c10d_buffer_free`.
    fn c10d_store_queue_pop(store: Option<&StoreHandle>, key: KeyPointer[key_len]; wait) -> value: Buffer = {
        let (waiting, timeout) = store.waiting(wait)?;
        waiting.queue_pop_timeout(&store.key(&key)?, timeout)?
    };

    /// Removes and returns elements from the head of a queue: at least one, and at most `max`. Waits for one; with
    /// `C10D_CHECK_ONCE` the list may be empty. A server returns at most 4 MiB at once, or one element. Free the list
    /// with `c10d_buffer_list_free`.
    fn c10d_store_queue_take(
        store: Option<&StoreHandle>, key: KeyPointer[key_len], max: usize; wait
    ) -> values: BufferList = {
        let (waiting, timeout) = store.waiting(wait)?;
        waiting.queue_take(&store.key(&key)?, max, timeout)?
    };

    /// Waits until `world_size` workers have arrived at the barrier `key`. A key works once: a completed barrier stays
    /// open. An arrival that timed out or was cancelled stays counted, so repeat with another key.
    fn c10d_store_barrier(store: Option<&StoreHandle>, key: KeyPointer[key_len], world_size: usize; wait) = {
        let (waiting, timeout) = store.waiting(wait)?;
        waiting.barrier_timeout(&store.key(&key)?, world_size, timeout)?
    };
}

operations! {
    /// Writes the value and owns the key: `owned` is true, and `present` is empty. If the key has a value of another
    /// owner, or without an owner, the store does not change: `owned` is false, and `present` has the value. The server
    /// deletes the key when the handle is closed or freed, its process exits, or its connection breaks. Then it writes
    /// `will_value` to `will_key`, unless `will_key` is null. Clones of the handle own other keys; a handle owns at
    /// most 1024.
    fn c10d_store_set_ephemeral(
        store: Option<&StoreHandle>,
        key: KeyPointer[key_len],
        value: DataPointer[value_len],
        will_key: KeyPointer[will_key_len],
        will_value: DataPointer[will_value_len],
    ) -> owned: bool, present: Buffer = {
        let (key, value) = (store.key(&key)?, value.read()?);
        let (will_name, will_value) = (store.key(&will_key)?, will_value.read()?);
        let will = (!will_key.is_null()).then_some((&*will_name, will_value));
        let present = store.store.set_ephemeral(&key, value, will)?;
        (present.is_none(), present)
    };

    /// Says that this process lives. From now on the keys that the handle owns also end when it is silent for
    /// `silence_max_ms`, which the server notices within 250 ms; `C10D_FOREVER` is no such end. So call it three times as often.
    /// `kept` is false if keys have ended by silence, or with their connection, since the last call: set them again.
    fn c10d_store_keep_alive(store: Option<&StoreHandle>, silence_max_ms: i64) -> kept: bool = {
        let Some(silence_max) = explicit_timeout(silence_max_ms)? else {
            let text = "silence_max_ms is C10D_DEFAULT, which a store does not have";
            return Err(Failure::invalid_argument(text));
        };
        store.store.keep_alive(silence_max)?
    };

    /// Ends the calls of all clients that wait for a key, a barrier or a queue whose name begins with the prefix: they return
    /// `C10D_ERROR_WAIT_ENDED`, and PyTorch's raise a `DistStoreError`. Writes to `count`, which may be null, how many.
    fn c10d_store_end_waits(store: Option<&StoreHandle>, prefix: KeyPointer[prefix_len]) -> count(or_null): u64 =
        store.store.end_waits(&store.key(&prefix)?)?;

    /// Deletes the values and queues of all names that begin with the prefix, which must not be empty, and writes their
    /// number to `count`, which may be null. If `delay_ms` is not 0, the function returns at once with a count of 0.
    /// The server then deletes the names that exist after this time.
    fn c10d_store_delete_prefix(
        store: Option<&StoreHandle>, prefix: KeyPointer[prefix_len], delay_ms: u64,
    ) -> count(or_null): u64 = store.store.delete_prefix(&store.key(&prefix)?, Duration::from_millis(delay_ms))?;
}
