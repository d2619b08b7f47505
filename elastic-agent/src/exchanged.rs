//! Values that the nodes of a round exchange on its store.

use c10d_socket::printable;
use c10d_store::{Store, StoreError};

const SHOWN_CHARS_MAX: usize = 120;

/// Another node wrote a value that cannot be parsed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key:?} in the {store} holds \"{value}\", which is not {expected}")]
#[non_exhaustive]
pub struct MalformedValue {
    /// The store's label, as `TCP store 10.0.0.1:29500`.
    pub store: String,
    /// With all prefixes.
    pub key: String,
    /// The start of the value.
    pub value: String,
    /// The expected form.
    pub expected: &'static str,
}

c10d_socket::debug_as_display!(MalformedValue);

impl MalformedValue {
    pub(crate) fn new(store: &dyn Store, key: &str, value: &[u8], expected: &'static str) -> Self {
        Self {
            store: store.label(),
            key: store.full_key(key),
            value: printable(value, SHOWN_CHARS_MAX).to_string(),
            expected,
        }
    }
}

/// `None` after the timeout.
pub(crate) fn in_time<T>(waited: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match waited {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::Timeout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
