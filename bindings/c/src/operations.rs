//! The operations of a store that do not wait for other workers.

use c10d_store::{StoreExt, key_to_bytes};

use crate::border::{Buffer, BufferList, BytesArray, Counted, DataPointer, KeyPointer};
use crate::failure::Failure;
use crate::interface::operations;
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
