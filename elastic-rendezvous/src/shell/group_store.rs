//! The keys that the nodes of a group use to send messages to each other (docs/spec/rendezvous.md,
//! section 10).

use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::{ErrorContext, Known, Operation, Store, StoreError, StoreExt};

use crate::engine::group::{Ask, Reply};
use crate::shell::board::{KEYS_MAX, read_present, write_all};

/// How many requests are taken from the queue at once.
const REQUESTS_MAX: usize = 4096;

/// How long to wait for values that should be there.
const PRESENT_TIMEOUT: Duration = Duration::from_millis(250);

/// A client of the keys through which the nodes of a large rendezvous send messages to each other: a few short keys
/// for each node, beside the state.
///
/// It uses the backend's store, and does not need another connection.
#[derive(Debug, Clone)]
pub struct GroupStore {
    store: Arc<dyn Store>,
    prefix: String,
}

impl GroupStore {
    /// Creates a group with keys below `prefix` in `store`. The store must have queues and [wake on
    /// changes](Store::has_prompt_watch).
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

    /// Returns a handle of the same keys. `cancel` makes its calls fail with [`StoreError::Interrupted`].
    pub(crate) fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self {
            store: self.store.with_cancel(cancel),
            prefix: self.prefix.clone(),
        }
    }

    /// Carries out an operation of the handler with this index. A wait ends with [`Reply::Nothing`] after `timeout`.
    pub(crate) fn perform(
        &self,
        index: u32,
        ask: &Ask,
        timeout: Duration,
    ) -> Result<Reply, StoreError> {
        let store = &self.store;
        Ok(match ask {
            Ask::WriteHeartbeat(heartbeat) => {
                store.set(&self.heartbeat_key(index), heartbeat.to_string().as_bytes())?;
                Reply::Done
            }
            Ask::ReadLease => Reply::Value(store.try_get(&self.key("h"))?),
            Ask::ReadSummary => Reply::Value(store.try_get(&self.key("s"))?),
            Ask::ReadAnswer => Reply::Value(store.try_get(&self.answer_key(index))?),
            Ask::Claim { expected, lease } => {
                let current = store.compare_set(&self.key("h"), expected, lease)?;
                Reply::Value(Some(current.into_value()))
            }
            Ask::Push(request) => {
                store.queue_push(&self.key("q"), request)?;
                Reply::Done
            }
            Ask::AwaitAnswer { known, .. } => {
                self.await_change(&self.answer_key(index), known, timeout)?
            }
            Ask::AwaitSummary { known, .. } => self.await_change(&self.key("s"), known, timeout)?,
            Ask::WriteSummary(text) => {
                store.set(&self.key("s"), text)?;
                Reply::Done
            }
            Ask::CountNodes => {
                let count = store.try_get(&self.key("n"))?.unwrap_or_default();
                Reply::Count(String::from_utf8_lossy(&count).parse().unwrap_or(0))
            }
            // A missing reply is an error: with it, requests may be lost. The nodes repeat them for the next
            // holder.
            Ask::TakeRequests { .. } => {
                match store.queue_take(&self.key("q"), REQUESTS_MAX, Some(timeout)) {
                    Ok(requests) => Reply::Requests(requests),
                    Err(StoreError::Timeout { .. }) => Reply::Nothing,
                    Err(error) => return Err(error),
                }
            }
            Ask::WriteAnswers(answers) => {
                let values = answers.iter();
                let values = values.map(|(to, text)| (self.answer_key(*to), text));
                write_all(&**store, &values.collect::<Vec<_>>())?;
                Reply::Done
            }
            Ask::ReadHeartbeats(indices) => Reply::Heartbeats(self.read_heartbeats(indices)?),
            // The other operations are not about keys of the group.
            _ => Reply::Nothing,
        })
    }

    /// Waits until the value of a key differs from the known one, which is empty for none.
    fn await_change(
        &self,
        key: &str,
        known: &[u8],
        timeout: Duration,
    ) -> Result<Reply, StoreError> {
        let changed = self
            .store
            .wait_change(key, Known::whole(known), Some(timeout));
        match changed {
            Ok(value) => Ok(Reply::Value(Some(value))),
            // A busy server may report the timeout late.
            Err(StoreError::Timeout { .. } | StoreError::NoReply { .. }) => Ok(Reply::Nothing),
            Err(error) => Err(error),
        }
    }

    /// The heartbeats of these handlers, in this order; empty for a handler without a heartbeat.
    fn read_heartbeats(&self, indices: &[u32]) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut heartbeats = Vec::with_capacity(indices.len());
        for indices in indices.chunks(KEYS_MAX) {
            let keys: Vec<_> = indices.iter().map(|it| self.heartbeat_key(*it)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            match self.store.multi_get_timeout(&keys, Some(PRESENT_TIMEOUT)) {
                Ok(present) => heartbeats.extend(present),
                Err(StoreError::Timeout { .. }) => {
                    let present = read_present(&*self.store, &keys)?;
                    heartbeats.extend(present.into_iter().map(Option::unwrap_or_default));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(heartbeats)
    }
}
