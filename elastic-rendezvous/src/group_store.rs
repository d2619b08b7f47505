//! The keys under which the nodes of a group write to each other (docs/rendezvous.md, section 10).

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use c10d_store::{ErrorContext, Known, Operation, Store, StoreError};

/// How many keys one request reads or writes.
const KEYS_MAX: usize = 1000;

/// How many requests are taken from the queue at once.
const REQUESTS_MAX: usize = 4096;

/// How long to wait for values that should be there.
const PRESENT_TIMEOUT: Duration = Duration::from_millis(250);

/// How long to wait for an interrupt that another wait may have got.
const TAKE_BACK: Duration = Duration::from_millis(1);

/// Where the nodes of a large rendezvous write to each other, beside its state: a few short keys for each node.
///
/// Has the same store as the backend, and no connection of its own.
#[derive(Debug, Clone)]
pub struct GroupStore {
    store: Arc<dyn Store>,
    prefix: String,
}

impl GroupStore {
    /// The group with keys below `prefix` in `store`. The store must have queues and
    /// [wake on changes](Store::wakes_on_change).
    #[must_use]
    pub fn new(store: Arc<dyn Store>, prefix: &str) -> Self {
        Self {
            store,
            prefix: prefix.to_owned(),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn answer_key(&self, index: u32) -> String {
        format!("{}/a/{index}", self.prefix)
    }

    fn heartbeat_key(&self, index: u32) -> String {
        format!("{}/b/{index}", self.prefix)
    }

    /// Whether the store has queues.
    pub(crate) fn has_queue(&self) -> Result<bool, StoreError> {
        match self.store.queue_len(&self.key("q")) {
            Ok(_) => Ok(true),
            Err(StoreError::Unsupported { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Counts a handler, and returns its number.
    pub(crate) fn count_handler(&self) -> Result<u32, StoreError> {
        let key = self.key("n");
        let number = self.store.add(&key, 1)?;
        u32::try_from(number).map_err(|_| {
            let (key, label) = (self.store.full_key(&key), self.store.label());
            StoreError::InvalidArgument {
                context: ErrorContext::new(Operation::Add, [&*key], label, Duration::ZERO),
                detail: format!("{number} is not the number of a handler"),
            }
        })
    }

    /// How many handlers were counted.
    pub(crate) fn handlers(&self) -> Result<u32, StoreError> {
        let count = self.store.try_get(&self.key("n"))?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&count).parse().unwrap_or(0))
    }

    pub(crate) fn read_lease(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.try_get(&self.key("h"))
    }

    /// Replaces the lease if it is the expected one. Returns the resulting one.
    pub(crate) fn claim(&self, expected: &[u8], lease: &[u8]) -> Result<Vec<u8>, StoreError> {
        let claimed = self.store.compare_set(&self.key("h"), expected, lease)?;
        Ok(claimed.into_value())
    }

    pub(crate) fn push(&self, request: &[u8]) -> Result<(), StoreError> {
        self.store.queue_push(&self.key("q"), request)
    }

    /// Takes requests from the queue; waits for one for at most `timeout`. `None` after the timeout.
    ///
    /// A reply that is missing is an error: with it, requests may be lost. The nodes repeat them for the next holder.
    pub(crate) fn take_requests(
        &self,
        timeout: Duration,
    ) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        let taken = self
            .store
            .queue_take(&self.key("q"), REQUESTS_MAX, Some(timeout));
        match taken {
            Ok(requests) => Ok(Some(requests)),
            Err(StoreError::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn read_answer(&self, index: u32) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.try_get(&self.answer_key(index))
    }

    /// Waits for another answer than `known`; empty for none. `None` after the timeout.
    pub(crate) fn await_answer(
        &self,
        index: u32,
        known: &[u8],
        timeout: Duration,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.await_change(&self.answer_key(index), known, timeout)
    }

    pub(crate) fn write_answers(&self, answers: &[(u32, Vec<u8>)]) -> Result<(), StoreError> {
        for answers in answers.chunks(KEYS_MAX) {
            let keys: Vec<String> = answers
                .iter()
                .map(|(index, _)| self.answer_key(*index))
                .collect();
            let texts = answers.iter().map(|(_, text)| text.as_slice());
            let pairs: Vec<(&str, &[u8])> = keys.iter().map(String::as_str).zip(texts).collect();
            self.store.multi_set(&pairs)?;
        }
        Ok(())
    }

    pub(crate) fn read_summary(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.try_get(&self.key("s"))
    }

    /// Waits for another summary than `known`; empty for none. `None` after the timeout.
    pub(crate) fn await_summary(
        &self,
        known: &[u8],
        timeout: Duration,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.await_change(&self.key("s"), known, timeout)
    }

    pub(crate) fn write_summary(&self, text: &[u8]) -> Result<(), StoreError> {
        self.store.set(&self.key("s"), text)
    }

    pub(crate) fn write_heartbeat(&self, index: u32, heartbeat: u64) -> Result<(), StoreError> {
        self.store
            .set(&self.heartbeat_key(index), heartbeat.to_string())
    }

    /// The heartbeats of these handlers, in this order; empty for one that has written none.
    pub(crate) fn read_heartbeats(&self, indices: &[u32]) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut heartbeats = Vec::with_capacity(indices.len());
        for indices in indices.chunks(KEYS_MAX) {
            let keys: Vec<String> = indices
                .iter()
                .map(|index| self.heartbeat_key(*index))
                .collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            match self.store.multi_get_timeout(&keys, Some(PRESENT_TIMEOUT)) {
                Ok(present) => heartbeats.extend(present),
                Err(StoreError::Timeout { .. }) => self.read_some(&keys, &mut heartbeats)?,
                Err(error) => return Err(error),
            }
        }
        Ok(heartbeats)
    }

    /// Appends the values of these keys, some of which may be missing; empty for a missing one.
    fn read_some(&self, keys: &[&str], values: &mut Vec<Vec<u8>>) -> Result<(), StoreError> {
        if self.store.check(keys)? {
            values.extend(self.store.multi_get(keys)?);
        } else if let [_] = keys {
            values.push(Vec::new());
        } else {
            let (left, right) = keys.split_at(keys.len() / 2);
            self.read_some(left, values)?;
            self.read_some(right, values)?;
        }
        Ok(())
    }

    /// Ends a wait of this thread with [`StoreError::Interrupted`]. Does not block.
    pub(crate) fn interrupt(&self, thread: ThreadId) {
        self.store.interrupt(thread);
    }

    /// Takes back an interrupt that crossed the end of the wait, so that it does not end another one.
    pub(crate) fn take_back_interrupt(&self) -> Result<(), StoreError> {
        let missing = self.key("none");
        match self.store.wait_timeout(&[&missing], Some(TAKE_BACK)) {
            Err(StoreError::Timeout { .. } | StoreError::Interrupted { .. }) => Ok(()),
            result => result,
        }
    }

    fn await_change(
        &self,
        key: &str,
        known: &[u8],
        timeout: Duration,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self
            .store
            .wait_change(key, Known::whole(known), Some(timeout))
        {
            Ok(value) => Ok(Some(value)),
            // A busy server may report the timeout late.
            Err(StoreError::Timeout { .. } | StoreError::NoReply { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
