//! The operations of a store that do not wait for other workers.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::borrow::Cow;
use std::mem::MaybeUninit;

use c10d_store::{StoreExt, key_to_bytes};

use crate::border::{self, Buffer, BufferList, Bytes, BytesArray, DataPointer, KeyPointer};
use crate::failure::Failure;
use crate::guard::call;
use crate::status::Status;
use crate::store::{OpenStore, StoreHandle};

/// The keys of an array.
pub(crate) fn keys<'k>(store: &OpenStore, keys: &'k [Bytes]) -> Result<Vec<Cow<'k, str>>, Failure> {
    let key = |key: &'k Bytes| {
        store.check_key(key.len)?;
        key.key("a key")
    };
    keys.iter().map(key).collect()
}

/// As the methods of stores take them.
pub(crate) fn as_strs<'k>(keys: &'k [Cow<'k, str>]) -> Vec<&'k str> {
    keys.iter().map(|key| &**key).collect()
}

/// Creates the key or replaces its value, and wakes all calls that wait for it. Over TCP the server sends no reply: a
/// later call on the same handle sees the value.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_set(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    value: DataPointer,
    value_len: usize,
) -> Status {
    call(|| {
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        Ok(store.store.set(&key, value.bytes(value_len, "value")?)?)
    })
}

/// The value of a key, without waiting for it: `found` is false and the value is empty if the key is missing.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_try_get(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    found: Option<&mut MaybeUninit<bool>>,
    value: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let value = border::result(value, Buffer::NULL, "value")?;
        let found = border::result(found, false, "found")?;
        let store = StoreHandle::used(store, "store")?;
        if let Some(bytes) = store.store.try_get(&store.key(&key, key_len, "key")?)? {
            *found = true;
            *value = Buffer::new(bytes);
        }
        Ok(())
    })
}

/// Adds `delta` to the decimal number at the key, and writes the sum to `sum`, which may be null. A missing key counts
/// as 0. Overflow wraps.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_add(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    delta: i64,
    sum: Option<&mut MaybeUninit<i64>>,
) -> Status {
    call(|| {
        let sum = sum.map(|sum| sum.write(0));
        let store = StoreHandle::used(store, "store")?;
        let total = store.store.add(&store.key(&key, key_len, "key")?, delta)?;
        if let Some(sum) = sum {
            *sum = total;
        }
        Ok(())
    })
}

/// Whether a `c10d_store_compare_set` wrote its value.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    non_camel_case_types,
    reason = "the names of C, so that both sides can be searched"
)]
pub enum Swapped {
    /// The key had another value than expected.
    C10D_SWAPPED_NO = 0,
    /// This call wrote the value.
    C10D_SWAPPED_YES = 1,
    /// The key has the desired value: this call wrote it, or it had it before. Only on PyTorch's servers, whose replies
    /// do not tell.
    C10D_SWAPPED_UNKNOWN = 2,
}

/// Writes `desired` if the value of the key equals `expected`, or if the key is missing and `expected` is empty. Writes
/// the resulting value to `value`, and to `swapped` whether this call wrote it; each of them may be null. For a
/// missing key and a non-empty `expected` the value is `expected`, and the key is still missing.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_compare_set(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    expected: DataPointer,
    expected_len: usize,
    desired: DataPointer,
    desired_len: usize,
    swapped: Option<&mut MaybeUninit<Swapped>>,
    value: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let value = value.map(|value| value.write(Buffer::NULL));
        let swapped = swapped.map(|swapped| swapped.write(Swapped::C10D_SWAPPED_NO));
        let store = StoreHandle::used(store, "store")?;
        let result = store.store.compare_set(
            &store.key(&key, key_len, "key")?,
            expected.bytes(expected_len, "expected")?,
            desired.bytes(desired_len, "desired")?,
        )?;
        if let Some(swapped) = swapped {
            *swapped = match result.swapped() {
                Some(false) => Swapped::C10D_SWAPPED_NO,
                Some(true) => Swapped::C10D_SWAPPED_YES,
                None => Swapped::C10D_SWAPPED_UNKNOWN,
            };
        }
        if let Some(value) = value {
            *value = Buffer::new(result.into_value());
        }
        Ok(())
    })
}

/// Whether all keys exist, without waiting for them. True for no keys.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_check(
    store: Option<&StoreHandle>,
    keys: BytesArray,
    key_count: usize,
    all_exist: Option<&mut MaybeUninit<bool>>,
) -> Status {
    call(|| {
        let all_exist = border::result(all_exist, false, "all_exist")?;
        let store = StoreHandle::used(store, "store")?;
        let keys = keys.elements(key_count, "keys")?;
        let keys = self::keys(store, keys)?;
        *all_exist = store.store.check(&as_strs(&keys))?;
        Ok(())
    })
}

/// Removes a key, and writes to `existed`, which may be null, whether it existed.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_delete_key(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    existed: Option<&mut MaybeUninit<bool>>,
) -> Status {
    call(|| {
        let existed = existed.map(|existed| existed.write(false));
        let store = StoreHandle::used(store, "store")?;
        let was_there = store.store.delete_key(&store.key(&key, key_len, "key")?)?;
        if let Some(existed) = existed {
            *existed = was_there;
        }
        Ok(())
    })
}

/// The number of keys with a value in the whole store, including those outside of a prefix and the store's own.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_num_keys(
    store: Option<&StoreHandle>,
    count: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let count = border::result(count, 0, "count")?;
        *count = StoreHandle::used(store, "store")?.store.num_keys()?;
        Ok(())
    })
}

/// All keys that have a value, in no particular order, of a prefix store those below its prefix. Free the list with
/// `c10d_buffer_list_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_list_keys(
    store: Option<&StoreHandle>,
    keys: Option<&mut MaybeUninit<BufferList>>,
) -> Status {
    call(|| {
        let list = border::result(keys, BufferList::NULL, "keys")?;
        let keys = StoreHandle::used(store, "store")?.store.list_keys()?;
        *list = BufferList::new(keys.iter().map(|key| key_to_bytes(key).into_owned()));
        Ok(())
    })
}

/// Appends to the value of the key, and creates it if it is missing.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_append(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    value: DataPointer,
    value_len: usize,
) -> Status {
    call(|| {
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        Ok(store.store.append(&key, value.bytes(value_len, "value")?)?)
    })
}

/// Sets the value of each key, from first to last: `values` has as many elements as `keys`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_multi_set(
    store: Option<&StoreHandle>,
    keys: BytesArray,
    values: BytesArray,
    count: usize,
) -> Status {
    call(|| {
        let store = StoreHandle::used(store, "store")?;
        let keys = keys.elements(count, "keys")?;
        let values = values.elements(count, "values")?;
        let keys = self::keys(store, keys)?;
        let pairs = keys.iter().zip(values);
        let pairs = pairs.map(|(key, value)| Ok((&**key, value.bytes("a value")?)));
        Ok(store
            .store
            .multi_set(&pairs.collect::<Result<Vec<_>, Failure>>()?)?)
    })
}

/// Appends a value to a queue.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_queue_push(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    value: DataPointer,
    value_len: usize,
) -> Status {
    call(|| {
        let store = StoreHandle::used(store, "store")?;
        let key = store.key(&key, key_len, "key")?;
        Ok(store
            .store
            .queue_push(&key, value.bytes(value_len, "value")?)?)
    })
}

/// Removes and returns the first element of a queue, without waiting for one: `found` is false and the value is empty
/// if the queue is empty.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_try_queue_pop(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    found: Option<&mut MaybeUninit<bool>>,
    value: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let value = border::result(value, Buffer::NULL, "value")?;
        let found = border::result(found, false, "found")?;
        let store = StoreHandle::used(store, "store")?;
        if let Some(bytes) = store
            .store
            .try_queue_pop(&store.key(&key, key_len, "key")?)?
        {
            *found = true;
            *value = Buffer::new(bytes);
        }
        Ok(())
    })
}

/// The number of elements in a queue; 0 for a missing one.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_queue_len(
    store: Option<&StoreHandle>,
    key: KeyPointer,
    key_len: usize,
    count: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let count = border::result(count, 0, "count")?;
        let store = StoreHandle::used(store, "store")?;
        *count = store.store.queue_len(&store.key(&key, key_len, "key")?)?;
        Ok(())
    })
}
