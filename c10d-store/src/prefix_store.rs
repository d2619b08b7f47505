//! A namespace within another store.

use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;

use crate::barrier::meet_by_keys;
use crate::compare_set::CompareSet;
use crate::error::{ErrorContext, Operation, StoreError};
use crate::forward_store;
use crate::known::Known;
use crate::store::{Store, StoreHandle};

/// A namespace within another store: the key `k` becomes `prefix/k` there.
///
/// With nested prefixes, the full key, which errors show, begins with the innermost store's prefix. The default
/// timeout and [`close`](StoreHandle::close) belong to the wrapped store.
///
/// Like in PyTorch, [`num_keys`](Store::num_keys) counts the whole underlying store, and
/// [`barrier`](crate::StoreExt::barrier) consists of `add`, `set` and `wait` even if the underlying store has a
/// barrier command. Unlike in PyTorch, [`list_keys`](Store::list_keys) returns only keys below
/// `prefix/`; in PyTorch, the prefix `a` also lists (and cuts) the keys of the prefix `ab`.
///
/// Each `PrefixStore` around another store adds a call to each operation, and some stack. Therefore, at most
/// [`NESTED_MAX`](Self::NESTED_MAX) are around each other; a program that nests them in a loop uses
/// [`nest`](Self::nest), which reports the limit as an error.
///
/// ```
/// use std::sync::Arc;
///
/// use c10d_store::{HashStore, PrefixStore, Store, StoreExt};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let store = Arc::new(HashStore::new());
/// let model = PrefixStore::new("model", store.clone());
/// model.set("epoch", "3")?;
/// assert_eq!(store.get("model/epoch")?, b"3");
/// assert_eq!(model.list_keys()?, ["epoch"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PrefixStore {
    prefix: String,
    underlying: Arc<dyn Store>,
}

impl PrefixStore {
    /// Creates a store of the keys of `underlying` below `prefix`. With an empty prefix, `k` becomes `/k`.
    ///
    /// # Panics
    /// If `underlying` is within [`NESTED_MAX`](Self::NESTED_MAX) prefixes already.
    pub fn new(prefix: impl Into<String>, underlying: Arc<dyn Store>) -> Self {
        let nested = nested_in(&*underlying);
        let max = Self::NESTED_MAX;
        assert!(
            nested < max,
            "{nested} prefix stores are around {} already: at most {max} (nest reports it as an error)",
            underlying.label()
        );
        Self {
            prefix: prefix.into(),
            underlying,
        }
    }

    /// Like [`new`](Self::new), with an error instead of the panic.
    ///
    /// # Errors
    /// [`StoreError::LimitExceeded`] if `underlying` is within [`NESTED_MAX`](Self::NESTED_MAX) prefixes already.
    pub fn nest(prefix: impl Into<String>, underlying: Arc<dyn Store>) -> Result<Self, StoreError> {
        let nested = nested_in(&*underlying);
        if nested < Self::NESTED_MAX {
            return Ok(Self::new(prefix, underlying));
        }
        let prefix = prefix.into();
        let label = underlying.label();
        Err(StoreError::LimitExceeded {
            context: ErrorContext::new(Operation::Open, [&*prefix], label, Duration::ZERO),
            what: "prefix stores around a store",
            actual: nested + 1,
            limit: Self::NESTED_MAX,
        })
    }

    /// The most prefixes around a store. PyTorch's process groups need five.
    pub const NESTED_MAX: usize = 100;

    fn around(&self, underlying: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Self::new(self.prefix.clone(), underlying))
    }

    fn join(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    /// Calls the wrapped store with the full key.
    fn with_key<T>(&self, key: &str, call: impl FnOnce(&dyn Store, &str) -> T) -> T {
        call(&*self.underlying, &self.join(key))
    }

    /// Calls the wrapped store with the full keys.
    fn with_keys<T>(&self, keys: &[&str], call: impl FnOnce(&dyn Store, &[&str]) -> T) -> T {
        let keys: Vec<String> = keys.iter().map(|key| self.join(key)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        call(&*self.underlying, &keys)
    }
}

/// The number of prefixes that a store is within, counting its own.
fn nested_in(store: &dyn Store) -> usize {
    std::iter::successors(store.underlying_store(), |inner| inner.underlying_store()).count()
}

impl Store for PrefixStore {
    forward_store! {
        with_key(key) append_bytes(key: &str, value: &[u8]) -> ();
        with_key(key) add(key: &str, delta: i64) -> i64;
        with_key(key) compare_set_bytes(key: &str, expected: &[u8], desired: &[u8]) -> CompareSet;
        with_key(key) delete_key(key: &str) -> bool;
        with_keys(keys) get_all(keys: &[&str], timeout: Option<Duration>) -> Vec<Vec<u8>>;
        with_key(key) try_get(key: &str) -> Option<Vec<u8>>;
        with_keys(keys) wait_all(keys: &[&str], timeout: Option<Duration>) -> ();
        with_keys(keys) check(keys: &[&str]) -> bool;
        with_key(key) queue_push_bytes(key: &str, value: &[u8]) -> ();
        with_key(key) queue_pop(key: &str) -> Vec<u8>;
        with_key(key) try_queue_pop(key: &str) -> Option<Vec<u8>>;
        with_key(key) queue_take_all(key: &str, max: usize, timeout: Option<Duration>) -> Vec<Vec<u8>>;
        with_key(key) queue_len(key: &str) -> u64;
        with_key(key) wait_changed(key: &str, known: Known<'_>, timeout: Option<Duration>) -> Vec<u8>;
        with_key(prefix) delete_prefix(prefix: &str, delay: Duration) -> u64;
        with_key(prefix) end_waits(prefix: &str) -> u64;
        with_key(group) ask_group(
            group: &str,
            request: &[u8],
            waits: bool,
            timeout: Option<Duration>
        ) -> Option<Vec<Vec<u8>>>;
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        self.with_keys(&keys, |store, keys| {
            let values = pairs.iter().map(|(_, value)| *value);
            let pairs: Vec<_> = keys.iter().copied().zip(values).collect();
            store.multi_set(&pairs)
        })
    }

    /// The keys below the prefix, without it.
    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let start = self.join("");
        let mut keys = self.underlying.list_keys()?;
        keys.retain_mut(|key| {
            let is_below = key.starts_with(&start);
            if is_below {
                key.drain(..start.len());
            }
            is_below
        });
        Ok(keys)
    }

    /// Counts the keys of the whole underlying store.
    fn num_keys(&self) -> Result<u64, StoreError> {
        self.underlying.num_keys()
    }

    /// Meets with the same keys as PyTorch, because workers on either library must write the same keys to meet.
    fn meet(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        meet_by_keys(self, key, world_size, timeout)
    }

    fn has_prompt_watch(&self) -> bool {
        self.underlying.has_prompt_watch()
    }

    fn set_ephemeral_bytes(
        &self,
        key: &str,
        value: &[u8],
        will: Option<(&str, &[u8])>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let will = will.map(|(key, value)| (self.join(key), value));
        let will = will.as_ref().map(|(key, value)| (&**key, *value));
        self.underlying
            .set_ephemeral_bytes(&self.join(key), value, will)
    }

    fn keep_alive(&self, silence_max: Option<Duration>) -> Result<bool, StoreError> {
        self.underlying.keep_alive(silence_max)
    }
}

impl StoreHandle for PrefixStore {
    fn label(&self) -> String {
        self.underlying.label()
    }

    fn full_key(&self, key: &str) -> String {
        self.underlying.full_key(&self.join(key))
    }

    fn underlying_store(&self) -> Option<&dyn Store> {
        Some(&*self.underlying)
    }

    fn check_process(&self) -> Result<(), StoreError> {
        self.underlying.check_process()
    }

    fn timeout(&self) -> Option<Duration> {
        self.underlying.timeout()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.underlying.set_timeout(timeout);
    }

    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(self.around(self.underlying.clone_store()?))
    }

    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store> {
        self.around(self.underlying.with_cancel(cancel))
    }

    fn close(&self) {
        self.underlying.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HashStore;
    use crate::store_ext::StoreExt;

    #[test]
    fn prefixes_nest_up_to_a_limit() {
        const MAX: usize = PrefixStore::NESTED_MAX;
        let base = HashStore::new();
        let mut store: Arc<dyn Store> = Arc::new(base.clone());
        for _ in 0..MAX {
            store = Arc::new(PrefixStore::nest("p", store).expect("within the limit"));
        }
        store.set("k", b"v").expect("a HashStore takes it");
        assert_eq!(
            base.get(&format!("{}k", "p/".repeat(MAX)))
                .expect("present"),
            b"v"
        );
        let error = PrefixStore::nest("q", Arc::clone(&store)).expect_err("beyond the limit");
        assert!(
            matches!(error, StoreError::LimitExceeded { limit: MAX, .. }),
            "{error}"
        );
        let clone = store.clone_store().expect("as deep as the original");
        assert_eq!(clone.get("k").expect("present"), b"v");
    }

    /// Instead of a stack overflow, which kills the process, in some later call or drop.
    #[test]
    fn a_loop_that_nests_prefixes_panics_at_the_limit() {
        let nested = std::panic::catch_unwind(|| {
            let mut store: Arc<dyn Store> = Arc::new(HashStore::new());
            for _ in 0..100_000 {
                store = Arc::new(PrefixStore::new("p", store));
            }
            store.set("k", b"v").expect("a HashStore takes it");
        });
        let payload = nested.expect_err("it stops at the limit");
        let text = payload
            .downcast_ref::<String>()
            .expect("a formatted message");
        assert!(text.starts_with("100 prefix stores are around"), "{text}");
    }
}
