//! Keys that end with their owner, and what ends for all names with a prefix. Only servers of `c10d` have them.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::mem::MaybeUninit;
use std::time::Duration;

use c10d_store::StoreExt;

use crate::border::{self, Buffer, DataPointer, KeyPointer};
use crate::failure::Failure;
use crate::guard::call;
use crate::status::Status;
use crate::store::StoreHandle;
use crate::timeout;

/// Writes the value and owns the key: `owned` is true, and `present` is empty. If the key has a value of another owner, or
/// of none, nothing changes: `owned` is false, and `present` has the value. The server deletes the key when the handle is
/// closed or freed, its process ends, or its connection breaks. Then it writes `will_value` to `will_key`, unless that is
/// null. Clones of the handle own other keys; a handle owns at most 1024.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_set_ephemeral(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    value: DataPointer,
    value_len: usize,
    will_key: KeyPointer,
    will_key_len: usize,
    will_value: DataPointer,
    will_value_len: usize,
    owned: Option<&mut MaybeUninit<bool>>,
    present: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let present = border::result(present, Buffer::NULL, "present")?;
        let owned = border::result(owned, false, "owned")?;
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        let value = value.bytes(value_len, "value")?;
        let has_will = !will_key.is_null();
        let will_key = store.key(&will_key, will_key_len, "will_key")?;
        let will_value = will_value.bytes(will_value_len, "will_value")?;
        let will = has_will.then_some((&*will_key, will_value));
        match store.store.set_ephemeral(&key, value, will)? {
            None => *owned = true,
            Some(value) => *present = Buffer::new(value),
        }
        Ok(())
    })
}

/// Says that this process lives. From now on the keys that the handle owns also end when it is silent for
/// `silence_max_ms`, which the server notices within 250 ms; `C10D_FOREVER` is no such end. So call it three times as often.
/// `kept` is false if keys have ended by silence, or with their connection, since the last call: set them again.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_keep_alive(
    store: Option<&StoreHandle>,
    silence_max_ms: i64,
    kept: Option<&mut MaybeUninit<bool>>,
) -> Status {
    call(|| {
        let kept = border::result(kept, false, "kept")?;
        let store = StoreHandle::used(store, "store")?;
        let Some(silence_max) = timeout::explicit(silence_max_ms)? else {
            let text = "silence_max_ms is C10D_DEFAULT, which a store does not have";
            return Err(Failure::invalid_argument(text));
        };
        *kept = store.store.keep_alive(silence_max)?;
        Ok(())
    })
}

/// Ends the calls of all clients that wait for a key, a barrier or a queue whose name begins with the prefix: they return
/// `C10D_ERROR_WAIT_ENDED`, and PyTorch's raise a `DistStoreError`. Writes to `count`, which may be null, how many.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_end_waits(
    store: Option<&StoreHandle>,
    prefix: KeyPointer,
    prefix_len: usize,
    count: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let count = count.map(|count| count.write(0));
        let store = StoreHandle::used(store, "store")?;
        let ended = store
            .store
            .end_waits(&store.key(&prefix, prefix_len, "prefix")?)?;
        if let Some(count) = count {
            *count = ended;
        }
        Ok(())
    })
}

/// Deletes the values and queues of all names that begin with the prefix, which must not be empty, and writes to `count`,
/// which may be null, how many. With a `delay_ms` that is not 0, it returns at once with 0, and the server deletes those of
/// then after this time.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_delete_prefix(
    store: Option<&StoreHandle>,
    prefix: KeyPointer,
    prefix_len: usize,
    delay_ms: u64,
    count: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let count = count.map(|count| count.write(0));
        let store = StoreHandle::used(store, "store")?;
        let prefix = store.key(&prefix, prefix_len, "prefix")?;
        let delay = Duration::from_millis(delay_ms);
        let deleted = store.store.delete_prefix(&prefix, delay)?;
        if let Some(count) = count {
            *count = deleted;
        }
        Ok(())
    })
}
