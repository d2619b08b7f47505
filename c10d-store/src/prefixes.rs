//! What concerns all names with a prefix, as an object-safe trait.

use crate::error::StoreError;

/// Operations on all names with a prefix. [`StoreExt`](crate::StoreExt) says what callers get.
pub trait Prefixes {
    /// Ends the waits for names with this prefix. Returns how many.
    ///
    /// # Errors
    /// As [`StoreExt::end_waits`](crate::StoreExt::end_waits).
    fn end_waits(&self, prefix: &str) -> Result<u64, StoreError>;
}
