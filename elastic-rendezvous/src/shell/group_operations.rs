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

impl GroupStore {
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
