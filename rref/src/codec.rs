//! Values as postcard bytes, and the names of their types.

use std::any::type_name;

use serde::Serialize;

use crate::protocol::{TYPE_NAME_BYTES_MAX, cut};

/// The bytes of a value. Its length is not measured first, as that would fork each reference twice.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, String> {
    postcard::to_extend(value, Vec::new()).map_err(|error| {
        let type_name = type_name::<T>();
        format!("a value of type `{type_name}` cannot be encoded: {error}")
    })
}

/// The name of a type as fork data carry it: Rust's, cut to the protocol's limit.
pub(crate) fn type_name_of<T>() -> &'static str {
    cut(type_name::<T>(), TYPE_NAME_BYTES_MAX)
}
