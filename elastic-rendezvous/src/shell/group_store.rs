//! The keys under which the nodes of a group write to each other (docs/spec/rendezvous.md, section 10).

use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::{ErrorContext, Operation, Store, StoreError};

/// Where the nodes of a large rendezvous write to each other, beside its state: a few short keys for each node.
///
/// Has the same store as the backend, and no connection of its own.
#[derive(Debug, Clone)]
pub struct GroupStore {
    pub(super) store: Arc<dyn Store>,
    prefix: String,
}

impl GroupStore {
    /// The group with keys below `prefix` in `store`. The store must have queues and
    /// [wake on changes](Store::has_prompt_watch).
    #[must_use]
    pub fn new(store: Arc<dyn Store>, prefix: &str) -> Self {
        Self {
            store,
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub(super) fn answer_key(&self, index: u32) -> String {
        format!("{}/a/{index}", self.prefix)
    }

    pub(super) fn heartbeat_key(&self, index: u32) -> String {
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

    /// The same, whose calls `cancel` ends with [`StoreError::Interrupted`].
    pub(crate) fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self {
            store: self.store.with_cancel(cancel),
            prefix: self.prefix.clone(),
        }
    }
}
