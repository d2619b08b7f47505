//! Values as postcard bytes, and the names of their types.

use std::any::type_name;

use postcard::ser_flavors::Flavor;
use serde::Serialize;

use crate::protocol::{TYPE_NAME_BYTES_MAX, cut};

/// The bytes of a value, up to `bytes_max`. Its length is not measured first, as that would
/// fork each reference twice.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T, bytes_max: u64) -> Result<Vec<u8>, String> {
    let bytes = Limited {
        bytes: Vec::new(),
        bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
    };
    postcard::serialize_with_flavor(value, bytes).map_err(|error| {
        let type_name = type_name::<T>();
        match error {
            postcard::Error::SerializeBufferFull => format!(
                "a value of type `{type_name}` has more bytes than message_bytes_max, which is {bytes_max}"
            ),
            error => format!("a value of type `{type_name}` cannot be encoded: {error}"),
        }
    })
}

/// Keeps bytes up to a limit.
struct Limited {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Flavor for Limited {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        if data.len() > self.bytes_max - self.bytes.len() {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.bytes)
    }
}

/// The name of a type as fork data carry it: Rust's, cut to the protocol's limit.
pub(crate) fn type_name_of<T>() -> &'static str {
    cut(type_name::<T>(), TYPE_NAME_BYTES_MAX)
}
