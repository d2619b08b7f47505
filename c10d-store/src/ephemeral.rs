//! Keys that end with their owner, as an object-safe trait.

use std::time::Duration;

use crate::error::StoreError;

/// Keys that live as long as the handle that set them. [`StoreExt::set_ephemeral`](crate::StoreExt::set_ephemeral) says
/// what callers get.
pub trait Ephemeral {
    /// Writes a value that ends with this handle. Returns the value of the key if that is not this handle's.
    ///
    /// # Errors
    /// As [`StoreExt::set_ephemeral`](crate::StoreExt::set_ephemeral).
    fn set_ephemeral(
        &self,
        key: &str,
        value: &[u8],
        will: Option<(&str, &[u8])>,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// Says that this process is alive, and how long it may be silent; `None` for any time.
    ///
    /// # Errors
    /// As [`StoreExt::keep_alive`](crate::StoreExt::keep_alive).
    fn keep_alive(&self, silence_max: Option<Duration>) -> Result<bool, StoreError>;
}
