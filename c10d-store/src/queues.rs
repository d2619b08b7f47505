//! Queues of values, as an object-safe trait.

use std::time::Duration;

use crate::error::{ErrorContext, StoreError};

/// The queues of a store. The methods of [`StoreExt`](crate::StoreExt#queues) say what callers get.
pub trait Queues {
    /// Appends `value` to the queue `key`.
    ///
    /// # Errors
    /// As [`StoreExt::queue_push`](crate::StoreExt::queue_push).
    fn push(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Removes the first element. Waits for one, for at most the default timeout of the store.
    ///
    /// # Errors
    /// As [`StoreExt::queue_pop`](crate::StoreExt::queue_pop).
    fn pop(&self, key: &str) -> Result<Vec<u8>, StoreError>;

    /// Removes the first element, if there is one.
    ///
    /// # Errors
    /// As [`StoreExt::try_queue_pop`](crate::StoreExt::try_queue_pop).
    fn try_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Removes up to `max` elements. Waits for the first.
    ///
    /// # Errors
    /// As [`StoreExt::queue_take`](crate::StoreExt::queue_take).
    fn take(
        &self,
        key: &str,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError>;

    /// The number of elements; 0 for a missing queue.
    ///
    /// # Errors
    /// As [`StoreExt::queue_len`](crate::StoreExt::queue_len).
    fn len(&self, key: &str) -> Result<u64, StoreError>;
}

/// Refuses a maximum of no elements: a server closes the connection on it.
pub(crate) fn check_take_max(
    max: usize,
    context: impl FnOnce() -> ErrorContext,
) -> Result<(), StoreError> {
    if max > 0 {
        return Ok(());
    }
    Err(StoreError::InvalidArgument {
        context: context(),
        detail: "the maximum of elements must be at least 1".to_owned(),
    })
}
