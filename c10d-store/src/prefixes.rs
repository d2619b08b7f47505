//! What concerns all names with a prefix, as an object-safe trait.

use std::time::Duration;

use crate::error::StoreError;

/// Operations on all names with a prefix. [`StoreExt`](crate::StoreExt) says what callers get.
pub trait Prefixes {
    /// Deletes the values and queues of all names with this prefix, after a delay if there is one. Returns how many.
    ///
    /// # Errors
    /// As [`StoreExt::delete_prefix`](crate::StoreExt::delete_prefix).
    fn delete_prefix(&self, prefix: &str, delay: Duration) -> Result<u64, StoreError>;

    /// Ends the waits for names with this prefix. Returns how many.
    ///
    /// # Errors
    /// As [`StoreExt::end_waits`](crate::StoreExt::end_waits).
    fn end_waits(&self, prefix: &str) -> Result<u64, StoreError>;
}
