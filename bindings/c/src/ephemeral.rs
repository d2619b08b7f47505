//! Keys that end with their owner, and what ends for all names with a prefix. Only servers of `c10d` have them.

use std::time::Duration;

use c10d_store::StoreExt;

use crate::border::{Buffer, DataPointer, KeyPointer};
use crate::failure::Failure;
use crate::interface::operations;
use crate::store::StoreHandle;
use crate::timeout;

operations! {
    /// Writes the value and owns the key: `owned` is true, and `present` is empty. If the key has a value of another owner, or
    /// of none, nothing changes: `owned` is false, and `present` has the value. The server deletes the key when the handle is
    /// closed or freed, its process ends, or its connection breaks. Then it writes `will_value` to `will_key`, unless that is
    /// null. Clones of the handle own other keys; a handle owns at most 1024.
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
        let Some(silence_max) = timeout::explicit(silence_max_ms)? else {
            let text = "silence_max_ms is C10D_DEFAULT, which a store does not have";
            return Err(Failure::invalid_argument(text));
        };
        store.store.keep_alive(silence_max)?
    };

    /// Ends the calls of all clients that wait for a key, a barrier or a queue whose name begins with the prefix: they return
    /// `C10D_ERROR_WAIT_ENDED`, and PyTorch's raise a `DistStoreError`. Writes to `count`, which may be null, how many.
    fn c10d_store_end_waits(store: Option<&StoreHandle>, prefix: KeyPointer[prefix_len]) -> count(or_null): u64 =
        store.store.end_waits(&store.key(&prefix)?)?;

    /// Deletes the values and queues of all names that begin with the prefix, which must not be empty, and writes to `count`,
    /// which may be null, how many. With a `delay_ms` that is not 0, it returns at once with 0, and the server deletes those of
    /// then after this time.
    fn c10d_store_delete_prefix(
        store: Option<&StoreHandle>, prefix: KeyPointer[prefix_len], delay_ms: u64,
    ) -> count(or_null): u64 = store.store.delete_prefix(&store.key(&prefix)?, Duration::from_millis(delay_ms))?;
}
