//! Carries out what a station asks, on the keys of the group.

use std::time::Duration;

use c10d_store::{Known, StoreError, StoreExt};

use super::group_store::GroupStore;
use super::many_keys::{KEYS_MAX, read_present, write_all};
use crate::engine::group::{Ask, Reply};

/// How many requests are taken from the queue at once.
const REQUESTS_MAX: usize = 4096;

/// How long to wait for values that should be there.
const PRESENT_TIMEOUT: Duration = Duration::from_millis(250);

/// A request about one key of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyRequest {
    /// Replaces the value.
    Set {
        /// With the prefix of the group.
        key: String,
        /// The new value.
        value: Vec<u8>,
    },
    /// Reads the value, if there is one.
    TryGet {
        /// With the prefix of the group.
        key: String,
    },
    /// Replaces the value if it is the expected one, empty for none, and reads it.
    CompareSet {
        /// With the prefix of the group.
        key: String,
        /// The expected value.
        expected: Vec<u8>,
        /// The new value.
        desired: Vec<u8>,
    },
    /// Appends to a queue.
    Push {
        /// Its key, with the prefix of the group.
        queue: String,
        /// The new element.
        value: Vec<u8>,
    },
    /// Waits for another value than the known one, empty for none.
    AwaitChange {
        /// With the prefix of the group.
        key: String,
        /// The known value.
        known: Vec<u8>,
    },
}

impl GroupStore {
    /// What the handler with this index asks of one key; `None` for other requests.
    pub(super) fn key_request(&self, index: u32, ask: &Ask) -> Option<KeyRequest> {
        Some(match ask {
            Ask::WriteHeartbeat(heartbeat) => KeyRequest::Set {
                key: self.heartbeat_key(index),
                value: heartbeat.to_string().into_bytes(),
            },
            Ask::ReadLease => KeyRequest::TryGet { key: self.key("h") },
            Ask::ReadSummary => KeyRequest::TryGet { key: self.key("s") },
            Ask::ReadAnswer => KeyRequest::TryGet {
                key: self.answer_key(index),
            },
            Ask::Claim { expected, lease } => KeyRequest::CompareSet {
                key: self.key("h"),
                expected: expected.clone(),
                desired: lease.clone(),
            },
            Ask::Push(request) => KeyRequest::Push {
                queue: self.key("q"),
                value: request.clone(),
            },
            Ask::AwaitAnswer { known, .. } => KeyRequest::AwaitChange {
                key: self.answer_key(index),
                known: known.clone(),
            },
            Ask::AwaitSummary { known, .. } => KeyRequest::AwaitChange {
                key: self.key("s"),
                known: known.clone(),
            },
            Ask::WriteSummary(text) => KeyRequest::Set {
                key: self.key("s"),
                value: text.clone(),
            },
            _ => return None,
        })
    }

    fn perform_on_key(&self, request: &KeyRequest, timeout: Duration) -> Result<Reply, StoreError> {
        let store = &self.store;
        Ok(match request {
            KeyRequest::Set { key, value } => {
                store.set(key, value)?;
                Reply::Done
            }
            KeyRequest::TryGet { key } => Reply::Value(store.try_get(key)?),
            KeyRequest::CompareSet {
                key,
                expected,
                desired,
            } => {
                let current = store.compare_set(key, expected, desired)?;
                Reply::Value(Some(current.into_value()))
            }
            KeyRequest::Push { queue, value } => {
                store.queue_push(queue, value)?;
                Reply::Done
            }
            KeyRequest::AwaitChange { key, known } => {
                match store.wait_change(key, Known::whole(known), Some(timeout)) {
                    Ok(value) => Reply::Value(Some(value)),
                    // A busy server may report the timeout late.
                    Err(StoreError::Timeout { .. } | StoreError::NoReply { .. }) => Reply::Nothing,
                    Err(error) => return Err(error),
                }
            }
        })
    }

    /// Carries out an operation of the handler with this index. A wait ends with [`Reply::Nothing`] after `timeout`.
    pub(crate) fn perform(
        &self,
        index: u32,
        ask: &Ask,
        timeout: Duration,
    ) -> Result<Reply, StoreError> {
        if let Some(request) = self.key_request(index, ask) {
            return self.perform_on_key(&request, timeout);
        }
        let store = &self.store;
        Ok(match ask {
            Ask::CountNodes => {
                let count = store.try_get(&self.key("n"))?.unwrap_or_default();
                Reply::Count(String::from_utf8_lossy(&count).parse().unwrap_or(0))
            }
            // A reply that is missing is an error: with it, requests may be lost. The nodes repeat them for the next
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
            // None of these is an operation on a key of the group.
            _ => Reply::Nothing,
        })
    }

    /// The heartbeats of these handlers, in this order; empty for one that has written none.
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
