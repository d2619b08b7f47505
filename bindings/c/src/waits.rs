//! The operations of a store that wait for other workers.
//!
//! Each has a time limit and may be cancelled.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::mem::MaybeUninit;

use c10d_store::{Known, StoreExt};

use crate::border::{self, Buffer, BufferList, BytesArray, DataPointer, KeyPointer};
use crate::cancel::{self, CancelHandle};
use crate::guard::call;
use crate::operations;
use crate::status::Status;
use crate::store::StoreHandle;
use crate::timeout;

/// The value of a key. Waits until it exists. Free the value with `c10d_buffer_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_get(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
    value: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let value = border::result(value, Buffer::NULL, "value")?;
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        let timeout = timeout::of_call(timeout_ms, &*store.store)?;
        let store = cancel::store_of_call(&store.store, cancel)?;
        *value = Buffer::new(store.get_timeout(&key, timeout)?);
        Ok(())
    })
}

/// Waits until all keys exist. The store tells the waiting call: nothing polls, except in file stores.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_wait(
    store: Option<&StoreHandle>,
    keys: BytesArray,
    key_count: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
) -> Status {
    call(|| {
        let store = StoreHandle::used(store, "store")?;
        let keys = keys.elements(key_count, "keys")?;
        let keys = operations::keys(store, keys)?;
        let keys = operations::as_strs(&keys);
        let timeout = timeout::of_call(timeout_ms, &*store.store)?;
        let store = cancel::store_of_call(&store.store, cancel)?;
        Ok(store.wait_timeout(&keys, timeout)?)
    })
}

/// Waits until the value of a key differs from `known`, and returns it; at once if it differs already. A missing
/// key is waited for. With `known` null, any value differs. PyTorch's servers do not tell of changes: there it
/// polls once a second.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_wait_change(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    known: DataPointer,
    known_len: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
    value: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let value = border::result(value, Buffer::NULL, "value")?;
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        let bytes = known.bytes(known_len, "known")?;
        let known = if known.is_null() {
            Known::nothing()
        } else {
            Known::whole(bytes)
        };
        let timeout = timeout::of_call(timeout_ms, &*store.store)?;
        let store = cancel::store_of_call(&store.store, cancel)?;
        *value = Buffer::new(store.wait_change(&key, known, timeout)?);
        Ok(())
    })
}

/// The values of all keys, in their order. Waits until all exist. Free the list with `c10d_buffer_list_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_multi_get(
    store: Option<&StoreHandle>,
    keys: BytesArray,
    key_count: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
    values: Option<&mut MaybeUninit<BufferList>>,
) -> Status {
    call(|| {
        let values = border::result(values, BufferList::NULL, "values")?;
        let store = StoreHandle::used(store, "store")?;
        let keys = keys.elements(key_count, "keys")?;
        let keys = operations::keys(store, keys)?;
        let keys = operations::as_strs(&keys);
        let timeout = timeout::of_call(timeout_ms, &*store.store)?;
        let store = cancel::store_of_call(&store.store, cancel)?;
        *values = BufferList::new(store.multi_get_timeout(&keys, timeout)?);
        Ok(())
    })
}

/// Removes and returns the first element of a queue. Waits for one. Free it with `c10d_buffer_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_queue_pop(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
    value: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let value = border::result(value, Buffer::NULL, "value")?;
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        let timeout = timeout::of_call(timeout_ms, &*store.store)?;
        let store = cancel::store_of_call(&store.store, cancel)?;
        *value = Buffer::new(store.queue_pop_timeout(&key, timeout)?);
        Ok(())
    })
}

/// Removes and returns elements from the head of a queue: at least one, and at most `max`. Waits for one; with
/// `C10D_CHECK_ONCE` the list may be empty. A server returns at most 4 MiB at once, or one element. Free the list
/// with `c10d_buffer_list_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_queue_take(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    max: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
    values: Option<&mut MaybeUninit<BufferList>>,
) -> Status {
    call(|| {
        let values = border::result(values, BufferList::NULL, "values")?;
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        let timeout = timeout::of_call(timeout_ms, &*store.store)?;
        let store = cancel::store_of_call(&store.store, cancel)?;
        *values = BufferList::new(store.queue_take(&key, max, timeout)?);
        Ok(())
    })
}

/// Waits until `world_size` workers have arrived at the barrier `key`. A key works once: a completed barrier stays
/// open. An arrival that timed out or was cancelled stays counted, so repeat with another key.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_barrier(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    world_size: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
) -> Status {
    call(|| {
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        let timeout = timeout::of_call(timeout_ms, &*store.store)?;
        let store = cancel::store_of_call(&store.store, cancel)?;
        Ok(store.barrier_timeout(&key, world_size, timeout)?)
    })
}
