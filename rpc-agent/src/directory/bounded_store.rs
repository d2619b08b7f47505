//! A store whose operations have a deadline. Does not retry.

use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, sleep};
use c10d_store::{Store, StoreError, StoreExt};

/// The least timeout of an operation that the store answers at once, even after the deadline: a server under load
/// must not be mistaken for a dead server, and a worker must still be able to leave.
const ANSWER_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Limit of the search for missing keys; the error then reports those found so far.
const SEARCH: Duration = Duration::from_secs(2);

/// A handle to a store whose timeout only this handle uses.
///
/// The timeout is set before each operation that takes none as an argument. Threads with different
/// deadlines can overwrite each other's. That matters only if the store does not answer: an operation
/// may then fail at the other thread's deadline, but not before [`ANSWER_TIMEOUT_MIN`].
#[derive(Debug, Clone)]
pub(crate) struct BoundedStore {
    store: Arc<dyn Store>,
    cancel: Cancel,
}

impl BoundedStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let cancel = Cancel::NEVER;
        Self { store, cancel }
    }

    /// Returns the same handle, whose operations `cancel` interrupts.
    pub(crate) fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self {
            store: self.store.with_cancel(cancel),
            cancel: cancel.clone(),
        }
    }

    /// The store, whose operations return by this deadline, or somewhat later if it does not answer.
    pub(crate) fn by(&self, by: Deadline) -> &dyn Store {
        let timeout = by.remaining(Instant::now());
        let timeout = timeout.map(|timeout| timeout.max(ANSWER_TIMEOUT_MIN));
        self.store.set_timeout(timeout);
        &*self.store
    }

    /// Waits before a repeated operation, which fails if a cancel has ended the pause.
    pub(crate) fn pause(&self, pause: Duration) {
        let _ = sleep(pause, [&self.cancel]);
    }

    pub(crate) fn label(&self) -> String {
        self.store.label()
    }

    pub(crate) fn full_key(&self, key: &str) -> String {
        self.store.full_key(key)
    }

    /// Writes `desired` if the value is `expected`, or if the key is missing and `expected` is empty.
    /// Returns the present value otherwise.
    pub(crate) fn replace(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        by: Deadline,
    ) -> Result<Result<(), Vec<u8>>, StoreError> {
        let swap = self.by(by).compare_set(key, expected, desired)?;
        Ok(if swap.value() == desired {
            Ok(())
        } else {
            Err(swap.into_value())
        })
    }

    /// Blocks until all keys exist. `false` if the deadline passes first.
    pub(crate) fn wait(&self, keys: &[&str], by: Deadline) -> Result<bool, StoreError> {
        match self.store.wait_timeout(keys, by.remaining(Instant::now())) {
            Ok(()) => Ok(true),
            Err(error) if error.is_timeout() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Finds the missing keys by bisection, which needs few requests if few are missing. Blocks for at most
    /// 2 s, if the store answers.
    ///
    /// Returns their positions, ascending, and whether the whole list was searched.
    pub(crate) fn missing(&self, keys: &[&str]) -> Result<(Vec<usize>, bool), StoreError> {
        let by = Deadline::after(Instant::now(), SEARCH);
        let mut missing = Vec::new();
        let mut ranges: Vec<Range<usize>> = iter::once(0..keys.len()).collect();
        while let Some(range) = ranges.pop() {
            if by.has_passed(Instant::now()) {
                return Ok((missing, false));
            }
            if self.by(by).check(&keys[range.clone()])? {
                continue;
            }
            if range.len() == 1 {
                missing.push(range.start);
                continue;
            }
            let middle = range.start + range.len() / 2;
            // The lower half is searched first.
            ranges.push(middle..range.end);
            ranges.push(range.start..middle);
        }
        Ok((missing, true))
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;

    #[test]
    fn missing_keys_are_found_in_order() {
        let store = HashStore::new();
        let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        for (position, key) in keys.iter().enumerate() {
            if ![0, 17, 18, 99].contains(&position) {
                store.set(key, b"").unwrap();
            }
        }
        let missing = BoundedStore::new(Arc::new(store)).missing(&keys).unwrap();
        assert_eq!(missing, (vec![0, 17, 18, 99], true));
    }

    #[test]
    fn a_missing_key_is_none_at_once() {
        let store = BoundedStore::new(Arc::new(HashStore::new()));
        assert_eq!(store.by(Deadline::NEVER).try_get("k").unwrap(), None);
        store.by(Deadline::NEVER).set("k", b"").unwrap();
        let now = Deadline::at(Instant::now());
        let there = store.by(now).try_get("k").unwrap();
        assert_eq!(there, Some(Vec::new()));
    }

    #[test]
    fn a_value_is_replaced_only_if_it_is_the_expected_one() {
        let store = BoundedStore::new(Arc::new(HashStore::new()));
        let now = Deadline::at(Instant::now());
        assert_eq!(store.replace("k", b"", b"a", now).unwrap(), Ok(()));
        assert_eq!(
            store.replace("k", b"", b"b", now).unwrap(),
            Err(b"a".to_vec())
        );
        assert_eq!(store.replace("k", b"a", b"", now).unwrap(), Ok(()));
        assert_eq!(store.replace("k", b"", b"b", now).unwrap(), Ok(()));
    }
}
