//! The operations of a store that wait for other workers.
//!
//! Each has a time limit and may be cancelled.

use c10d_store::{Known, StoreExt};

use crate::border::{Buffer, BufferList, BytesArray, DataPointer, KeyPointer};
use crate::cancel::CancelHandle;
use crate::interface::operations;
use crate::store::{StoreHandle, as_strs};

operations! {
    /// The value of a key. Waits until it exists. Free the value with `c10d_buffer_free`.
    fn c10d_store_get(store: Option<&StoreHandle>, key: KeyPointer[key_len]; wait) -> value: Buffer = {
        let (waiting, timeout) = store.waiting(wait)?;
        waiting.get_timeout(&store.key(&key)?, timeout)?
    };

    /// Waits until all keys exist. The store tells the waiting call: nothing polls, except in file stores.
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
