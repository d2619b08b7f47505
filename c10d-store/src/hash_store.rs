//! A store within one process: a map behind a lock.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, Process};

use crate::barrier::meet_by_keys;
use crate::compare_set::CompareSet;
use crate::decimal::write_decimal;
use crate::default_timeout::DefaultTimeout;
use crate::error::{ErrorContext, Operation, Outcome, StoreError};
use crate::known::Known;
use crate::store::{DEFAULT_TIMEOUT, Store, StoreHandle};
use crate::value_rules;

/// A store within one process, for single-process jobs and for tests.
///
/// A clone is a second handle to the same contents, with its own default timeout; closing one handle does not close
/// the other handles. The contents live as long as the last handle.
///
/// A store belongs to the process that made it: in a forked child every operation fails with
/// [`StoreError::OtherProcess`].
///
/// Every operation is atomic. `get` and `multi_get` need a value; a queue with elements also satisfies `check` and
/// `wait`, like in PyTorch. Unlike in PyTorch's `HashStore`, every write wakes the calls that wait for it (there,
/// `add` wakes none, and `queue_push` may wake the wrong thread), and the values of `multi_get` existed at the same
/// moment.
///
/// ```
/// use std::thread;
///
/// use c10d_store::{HashStore, StoreExt};
///
/// # fn main() -> Result<(), c10d_store::StoreError> {
/// let store = HashStore::new();
/// let worker = store.clone();
/// let worker = thread::spawn(move || worker.set("address", "10.0.0.1"));
/// assert_eq!(store.get("address")?, b"10.0.0.1"); // waits until the key exists
/// worker.join().expect("the worker does not panic")?;
/// # Ok(())
/// # }
/// ```
pub struct HashStore {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    cancel: Cancel,
}

struct Handle {
    timeout: DefaultTimeout,
    /// Set under the lock of the contents, so that no waiting thread can miss it.
    closed: AtomicBool,
}

struct Shared {
    contents: Mutex<Contents>,
    /// Notified after a write, and when a handle is closed. One condition for all keys and handles: a
    /// woken thread checks again and waits on, which costs little and cannot lose a wakeup.
    written: Condvar,
    /// The process of the store: only this process has the threads that hold the lock, and a forked child has other
    /// contents.
    process: Process,
}

#[derive(Default)]
struct Contents {
    values: HashMap<String, Vec<u8>>,
    /// Invariant: no queue is empty.
    queues: HashMap<String, VecDeque<Vec<u8>>>,
    /// The number of threads that wait on `written`. With none, a write makes no system call.
    waiting_threads: usize,
}

impl HashStore {
    /// Creates a new, empty store with the [default timeout](DEFAULT_TIMEOUT).
    #[must_use]
    pub fn new() -> Self {
        let shared = Shared {
            contents: Mutex::new(Contents::default()),
            written: Condvar::new(),
            process: Process::this(),
        };
        Self {
            shared: Arc::new(shared),
            handle: Handle::new(Some(DEFAULT_TIMEOUT)),
            cancel: Cancel::NEVER,
        }
    }

    /// Locks the contents for a call on this handle.
    fn contents(
        &self,
        operation: Operation,
        keys: &[&str],
    ) -> Result<MutexGuard<'_, Contents>, StoreError> {
        self.check_process_of(operation, keys)?;
        let contents = self.shared.contents();
        self.check_not_closed(operation, keys, Duration::ZERO)?;
        Ok(contents)
    }

    fn check_process_of(&self, operation: Operation, keys: &[&str]) -> Result<(), StoreError> {
        self.shared.process.check().map_err(|source| {
            let keys = keys.iter().copied();
            let context = ErrorContext::new(operation, keys, self.label(), Duration::ZERO);
            StoreError::OtherProcess { context, source }
        })
    }

    fn check_not_closed(
        &self,
        operation: Operation,
        keys: &[&str],
        elapsed: Duration,
    ) -> Result<(), StoreError> {
        // Written and read under the lock, so no stronger ordering is needed.
        if self.handle.closed.load(Ordering::Relaxed) {
            let keys = keys.iter().copied();
            let context = ErrorContext::new(operation, keys, self.label(), elapsed);
            return Err(StoreError::Closed { context });
        }
        Ok(())
    }

    /// Runs `change` on the contents and wakes the waiting threads.
    fn write<T>(
        &self,
        operation: Operation,
        keys: &[&str],
        change: impl FnOnce(&mut Contents) -> T,
    ) -> Result<T, StoreError> {
        let mut contents = self.contents(operation, keys)?;
        let result = change(&mut contents);
        let has_waiting_threads = contents.waiting_threads > 0;
        drop(contents);
        if has_waiting_threads {
            self.shared.written.notify_all();
        }
        Ok(result)
    }

    /// Waits until every key satisfies `exists`, and returns the contents still locked, so that the
    /// caller sees them at that moment.
    fn wait_for(
        &self,
        operation: Operation,
        keys: &[&str],
        timeout: Option<Duration>,
        exists: impl Fn(&Contents, &str) -> bool,
    ) -> Result<MutexGuard<'_, Contents>, StoreError> {
        let started = Instant::now();
        let deadline = Deadline::after(started, timeout);
        let mut watch = self.cancel.watch();
        let mut contents = self.contents(operation, keys)?;
        while !keys.iter().all(|key| exists(&contents, key)) {
            let now = Instant::now();
            if deadline.has_passed(now) {
                let missing = keys.iter().filter(|key| !exists(&contents, key)).copied();
                let context = ErrorContext::new(operation, missing, self.label(), now - started);
                return Err(StoreError::timeout(context, timeout));
            }
            if watch.is_due() {
                // The check of the cancel may use the store.
                drop(contents);
                if watch.ask(|| Arc::clone(&self.shared).into()) {
                    let keys = keys.iter().copied();
                    let context = ErrorContext::new(operation, keys, self.label(), now - started);
                    return Err(StoreError::interrupted(context, Outcome::NotSent));
                }
                contents = self.shared.contents();
            } else {
                contents = self.shared.wait(contents, deadline.remaining(now));
            }
            self.check_not_closed(operation, keys, started.elapsed())?;
        }
        Ok(contents)
    }
}

impl Handle {
    fn new(timeout: Option<Duration>) -> Arc<Self> {
        Arc::new(Self {
            timeout: DefaultTimeout::new(timeout),
            closed: AtomicBool::new(false),
        })
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        drop(self.contents());
        self.written.notify_all();
    }
}

impl Shared {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        // Each change under the lock is one call on a map, so the contents are consistent even if a
        // thread panicked (out of memory).
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a write, a closed handle, the timeout, or a spurious wakeup.
    fn wait<'a>(
        &self,
        mut contents: MutexGuard<'a, Contents>,
        time_left: Option<Duration>,
    ) -> MutexGuard<'a, Contents> {
        contents.waiting_threads += 1;
        let mut contents = match time_left {
            None => self
                .written
                .wait(contents)
                .unwrap_or_else(PoisonError::into_inner),
            Some(time_left) => {
                self.written
                    .wait_timeout(contents, time_left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        contents.waiting_threads -= 1;
        contents
    }
}

impl Contents {
    fn value(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    fn has_value(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    fn has_queue(&self, key: &str) -> bool {
        self.queues.contains_key(key)
    }

    fn has_value_or_queue(&self, key: &str) -> bool {
        self.has_value(key) || self.has_queue(key)
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        if let Some(present) = self.values.get_mut(key) {
            *present = value.to_vec();
        } else {
            self.values.insert(key.to_owned(), value.to_vec());
        }
    }

    fn append(&mut self, key: &str, value: &[u8]) {
        if let Some(present) = self.values.get_mut(key) {
            present.extend_from_slice(value);
        } else {
            self.values.insert(key.to_owned(), value.to_vec());
        }
    }

    fn pop(&mut self, key: &str) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(key)?;
        let element = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        element
    }
}

impl Default for HashStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for HashStore {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            handle: Handle::new(self.timeout()),
            cancel: self.cancel.clone(),
        }
    }
}

impl fmt::Debug for HashStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashStore")
            .field("timeout", &self.timeout())
            .finish_non_exhaustive()
    }
}

impl Store for HashStore {
    /// The pairs become visible together.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        self.write(Operation::set_of(pairs.len()), &keys, |contents| {
            for (key, value) in pairs {
                contents.set(key, value);
            }
        })
    }

    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.write(Operation::Append, &[key], |contents| {
            contents.append(key, value);
        })
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.write(Operation::Add, &[key], |contents| {
            let present = contents.value(key);
            let sum = value_rules::sum(present, delta).ok_or_else(|| StoreError::NotANumber {
                context: ErrorContext::new(Operation::Add, [key], self.label(), Duration::ZERO),
                value: value_rules::shorten(present.unwrap_or_default()),
            })?;
            if let Some(text) = contents.values.get_mut(key) {
                write_decimal(sum, text);
            } else {
                let mut text = Vec::new();
                write_decimal(sum, &mut text);
                contents.values.insert(key.to_owned(), text);
            }
            Ok(sum)
        })?
    }

    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError> {
        self.write(Operation::CompareSet, &[key], |contents| {
            let present = contents.value(key);
            if value_rules::is_expected(present, expected) {
                contents.set(key, desired);
                CompareSet::new(desired.to_vec(), true)
            } else {
                CompareSet::new(value_rules::refusal(present, expected).to_vec(), false)
            }
        })
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        let mut contents = self.contents(Operation::DeleteKey, &[key])?;
        Ok(contents.values.remove(key).is_some())
    }

    /// The values existed at the same moment.
    fn get_all(
        &self,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let contents = self.wait_for(
            Operation::get_of(keys.len()),
            keys,
            timeout,
            Contents::has_value,
        )?;
        Ok(keys
            .iter()
            .map(|key| contents.values[*key].clone())
            .collect())
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let contents = self.contents(Operation::Get, &[key])?;
        Ok(contents.value(key).map(<[u8]>::to_vec))
    }

    fn wait_all(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let exists = Contents::has_value_or_queue;
        drop(self.wait_for(Operation::Wait, keys, timeout, exists)?);
        Ok(())
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let contents = self.contents(Operation::Check, keys)?;
        Ok(keys.iter().all(|key| contents.has_value_or_queue(key)))
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let contents = self.contents(Operation::ListKeys, &[])?;
        Ok(contents.values.keys().cloned().collect())
    }

    /// The number of values, without queues.
    fn num_keys(&self) -> Result<u64, StoreError> {
        Ok(self.contents(Operation::NumKeys, &[])?.values.len() as u64)
    }

    fn meet(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        meet_by_keys(self, key, world_size, timeout)
    }

    fn queue_push_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.write(Operation::QueuePush, &[key], |contents| {
            let queue = contents.queues.entry(key.to_owned()).or_default();
            queue.push_back(value.to_vec());
        })
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let timeout = self.timeout();
        let mut contents =
            self.wait_for(Operation::QueuePop, &[key], timeout, Contents::has_queue)?;
        Ok(contents
            .pop(key)
            .expect("has_queue was true under this lock"))
    }

    fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.contents(Operation::QueuePop, &[key])?.pop(key))
    }

    fn queue_take_all(
        &self,
        key: &str,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let operation = Operation::QueueTake;
        value_rules::check_take_max(max, || {
            ErrorContext::new(operation, [key], self.label(), Duration::ZERO)
        })?;
        let mut contents = match self.wait_for(operation, &[key], timeout, Contents::has_queue) {
            Err(StoreError::Timeout { .. }) if timeout == Some(Duration::ZERO) => {
                return Ok(Vec::new());
            }
            contents => contents?,
        };
        Ok((0..max).map_while(|_| contents.pop(key)).collect())
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        let contents = self.contents(Operation::QueueLen, &[key])?;
        Ok(contents
            .queues
            .get(key)
            .map_or(0, |queue| queue.len() as u64))
    }

    fn wait_changed(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let differs = |contents: &Contents, key: &str| {
            let value = contents.value(key);
            value.is_some_and(|value| known.is_outdated_by(value))
        };
        let contents = self.wait_for(Operation::WaitChange, &[key], timeout, differs)?;
        Ok(contents.values[key].clone())
    }

    fn has_prompt_watch(&self) -> bool {
        true
    }
}

impl StoreHandle for HashStore {
    fn label(&self) -> String {
        "hash store".to_owned()
    }

    fn check_process(&self) -> Result<(), StoreError> {
        self.check_process_of(Operation::Open, &[])
    }

    fn timeout(&self) -> Option<Duration> {
        self.handle.timeout.get()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.handle.timeout.set(timeout);
    }

    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        drop(self.contents(Operation::Open, &[])?);
        Ok(Arc::new(self.clone()))
    }

    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store> {
        Arc::new(Self {
            shared: Arc::clone(&self.shared),
            handle: Arc::clone(&self.handle),
            cancel: cancel.clone(),
        })
    }

    fn close(&self) {
        if !self.shared.process.is_this() {
            return;
        }
        let contents = self.shared.contents();
        self.handle.closed.store(true, Ordering::Relaxed);
        drop(contents);
        // Calls of other handles check and wait on.
        self.shared.written.notify_all();
    }
}
