//! A namespace within another store.

use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;

use crate::compare_set::CompareSet;
use crate::error::{ErrorContext, Operation, StoreError};
use crate::known::Known;
use crate::store::{Store, generic_barrier, takes_any_bytes};

/// A namespace within another store: the key `k` becomes `prefix/k` there.
///
/// Wraps any store, including an `Arc<dyn Store>` and another `PrefixStore`. With nested prefixes the
/// innermost store's prefix comes first in the full key, which errors show. The default timeout and
/// [`close`](Store::close) are those of the wrapped store.
///
/// As in PyTorch, [`num_keys`](Store::num_keys) counts the whole underlying store, and
/// [`barrier`](Store::barrier) consists of `add`, `set` and `wait` even if the underlying store has a
/// barrier command. Unlike in PyTorch, [`list_keys`](Store::list_keys) returns only keys below
/// `prefix/`; in PyTorch, the prefix `a` also lists (and cuts) the keys of the prefix `ab`.
///
/// Each `PrefixStore` around another one adds a call to each operation, and some stack. So at most
/// [`NESTED_MAX`](Self::NESTED_MAX) are around each other; a program that nests them in a loop uses [`nest`](Self::nest),
/// which reports the limit as an error.
///
/// ```
/// use c10d_store::{HashStore, PrefixStore, Store};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let store = HashStore::new();
/// let model = PrefixStore::new("model", store.clone());
/// model.set("epoch", "3")?;
/// assert_eq!(store.get("model/epoch")?, b"3");
/// assert_eq!(model.list_keys()?, ["epoch"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PrefixStore<S> {
    prefix: String,
    underlying: S,
}

impl<S: Store> PrefixStore<S> {
    /// The keys of `underlying` below `prefix`. With an empty prefix, `k` becomes `/k`.
    ///
    /// # Panics
    /// If `underlying` is within [`NESTED_MAX`](Self::NESTED_MAX) prefixes already.
    pub fn new(prefix: impl Into<String>, underlying: S) -> Self {
        let nested = nested_in(&underlying);
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

    /// As [`new`](Self::new), with an error instead of the panic.
    ///
    /// # Errors
    /// [`StoreError::LimitExceeded`] if `underlying` is within [`NESTED_MAX`](Self::NESTED_MAX) prefixes already.
    pub fn nest(prefix: impl Into<String>, underlying: S) -> Result<Self, StoreError> {
        let nested = nested_in(&underlying);
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

    /// The prefix, without the `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The wrapped store, with its type; [`underlying_store`](Store::underlying_store) without.
    pub const fn underlying(&self) -> &S {
        &self.underlying
    }

    fn join(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    fn join_all(&self, keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| self.join(key)).collect()
    }
}

/// The number of prefixes that a store is within, counting its own.
fn nested_in(store: &dyn Store) -> usize {
    std::iter::successors(store.underlying_store(), |inner| inner.underlying_store()).count()
}

takes_any_bytes!(impl[S: Store] PrefixStore<S>);

fn as_strs(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

impl<S: Store> Store for PrefixStore<S> {
    fn set_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.underlying.set_bytes(&self.join(key), value)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.underlying.get(&self.join(key))
    }

    fn get_timeout(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>, StoreError> {
        self.underlying.get_timeout(&self.join(key), timeout)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.underlying.try_get(&self.join(key))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.underlying.add(&self.join(key), delta)
    }

    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError> {
        self.underlying
            .compare_set_bytes(&self.join(key), expected, desired)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.underlying.check(&as_strs(&self.join_all(keys)))
    }

    fn wait(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.underlying.wait(&as_strs(&self.join_all(keys)))
    }

    fn wait_timeout(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let keys = self.join_all(keys);
        self.underlying.wait_timeout(&as_strs(&keys), timeout)
    }

    fn wait_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        self.underlying.wait_change(&self.join(key), known, timeout)
    }

    fn wakes_on_change(&self) -> bool {
        self.underlying.wakes_on_change()
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        self.underlying.delete_key(&self.join(key))
    }

    /// Counts the keys of the whole underlying store.
    fn num_keys(&self) -> Result<u64, StoreError> {
        self.underlying.num_keys()
    }

    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.underlying.append_bytes(&self.join(key), value)
    }

    fn multi_get_timeout(
        &self,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.underlying
            .multi_get_timeout(&as_strs(&self.join_all(keys)), timeout)
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<String> = pairs.iter().map(|(key, _)| self.join(key)).collect();
        let pairs: Vec<(&str, &[u8])> = keys
            .iter()
            .zip(pairs)
            .map(|(key, (_, value))| (key.as_str(), *value))
            .collect();
        self.underlying.multi_set(&pairs)
    }

    fn queue_push_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.underlying.queue_push_bytes(&self.join(key), value)
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.underlying.queue_pop(&self.join(key))
    }

    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.underlying.try_queue_pop(&self.join(key))
    }

    fn queue_take(
        &self,
        key: &str,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.underlying.queue_take(&self.join(key), max, timeout)
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        self.underlying.queue_len(&self.join(key))
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

    /// Not forwarded, as in PyTorch: workers on either library must write the same keys to meet.
    fn barrier_timeout(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        generic_barrier(self, key, world_size, timeout)
    }

    fn timeout(&self) -> Option<Duration> {
        self.underlying.timeout()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.underlying.set_timeout(timeout);
    }

    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        let underlying = self.underlying.clone_store()?;
        Ok(Arc::new(PrefixStore::new(self.prefix.clone(), underlying)))
    }

    fn close(&self) {
        self.underlying.close();
    }

    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store> {
        let underlying = self.underlying.with_cancel(cancel);
        Arc::new(PrefixStore::new(self.prefix.clone(), underlying))
    }

    fn has_extended_api(&self) -> bool {
        self.underlying.has_extended_api()
    }

    fn label(&self) -> String {
        self.underlying.label()
    }

    fn full_key(&self, key: &str) -> String {
        self.underlying.full_key(&self.join(key))
    }

    fn underlying_store(&self) -> Option<&dyn Store> {
        Some(&self.underlying)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HashStore;

    #[test]
    fn prefixes_nest_up_to_a_limit() {
        const MAX: usize = PrefixStore::<Arc<dyn Store>>::NESTED_MAX;
        let base = HashStore::new();
        let mut store: Arc<dyn Store> = Arc::new(base.clone());
        for _ in 0..MAX {
            store = Arc::new(PrefixStore::nest("p", store).expect("within the limit"));
        }
        store.set_bytes("k", b"v").expect("a HashStore takes it");
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

    /// Instead of a stack overflow, which ends the process, in some later call or drop.
    #[test]
    fn a_loop_that_nests_prefixes_panics_at_the_limit() {
        let nested = std::panic::catch_unwind(|| {
            let mut store: Arc<dyn Store> = Arc::new(HashStore::new());
            for _ in 0..100_000 {
                store = Arc::new(PrefixStore::new("p", store));
            }
            store.set_bytes("k", b"v").expect("a HashStore takes it");
        });
        let payload = nested.expect_err("it stops at the limit");
        let text = payload
            .downcast_ref::<String>()
            .expect("a formatted message");
        assert!(text.starts_with("100 prefix stores are around"), "{text}");
    }
}
