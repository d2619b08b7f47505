//! Reads and writes many keys in few requests.

use c10d_store::{Store, StoreError, StoreExt};

/// The most keys of one request: far below the limits of stores (`WireLimits` in `c10d-store`), so that the store serves
/// other nodes in between.
pub(crate) const KEYS_MAX: usize = 1024;

/// Writes these values.
pub(crate) fn write_all(
    store: &dyn Store,
    values: &[(String, impl AsRef<[u8]>)],
) -> Result<(), StoreError> {
    for values in values.chunks(KEYS_MAX) {
        let pairs = values.iter().map(|(key, value)| (&**key, value.as_ref()));
        store.multi_set(&pairs.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Reads the values of those keys that have one, in the order of the keys. Halves the keys until all of them have a value or
/// one is left, because a request only returns whether all have one.
pub(crate) fn read_present(
    store: &dyn Store,
    keys: &[&str],
) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    if keys.len() <= KEYS_MAX && store.check(keys)? {
        return Ok(store.multi_get(keys)?.into_iter().map(Some).collect());
    }
    if keys.len() <= 1 {
        return Ok(vec![None; keys.len()]);
    }
    let (left, right) = keys.split_at(keys.len() / 2);
    let mut values = read_present(store, left)?;
    values.append(&mut read_present(store, right)?);
    Ok(values)
}
