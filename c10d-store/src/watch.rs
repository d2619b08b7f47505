//! Waiting for another value, as an object-safe trait.

use std::time::Duration;

use crate::error::StoreError;
use crate::known::Known;

/// Waits for changes of values. [`StoreExt::wait_change`](crate::StoreExt::wait_change) says what callers get.
pub trait Watch {
    /// The value of `key`, as soon as it differs from what is `known`.
    ///
    /// # Errors
    /// As [`StoreExt::wait_change`](crate::StoreExt::wait_change).
    fn wait_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError>;

    /// Whether a wait ends within milliseconds of a change. If not, it polls once a second: PyTorch's servers have
    /// no such notification.
    fn is_prompt(&self) -> bool;
}
