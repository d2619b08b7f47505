//! A value on its owner, with its type erased.
//!
//! Encodes itself if its type implements `Serialize`. Is independent of references and of the agent.

use std::any::{Any, type_name};
use std::fmt;
use std::sync::Arc;

use postcard::ser_flavors::Flavor;
use serde::Serialize;

use crate::protocol::{TYPE_NAME_BYTES_MAX, cut};

type Encode = fn(&(dyn Any + Send + Sync), u64) -> Result<Vec<u8>, String>;

/// The value of a reference. Clones share it.
#[derive(Clone)]
pub(crate) struct Value {
    held: Arc<dyn Any + Send + Sync>,
    kind: &'static Kind,
}

/// The part that all values of a type share.
struct Kind {
    type_name: fn() -> &'static str,
    /// `None` for an opaque value, which never leaves its owner.
    encode: Option<Encode>,
}

impl Value {
    /// A value that other workers can fetch.
    pub(crate) fn of<T: Serialize + Send + Sync + 'static>(value: T) -> Self {
        Self {
            held: Arc::new(value),
            kind: const {
                &Kind {
                    type_name: type_name_of::<T>,
                    encode: Some(encode_erased::<T>),
                }
            },
        }
    }

    /// A value that never leaves its owner.
    pub(crate) fn opaque<T: Send + Sync + 'static>(value: T) -> Self {
        Self {
            held: Arc::new(value),
            kind: const {
                &Kind {
                    type_name: type_name_of::<T>,
                    encode: None,
                }
            },
        }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        (self.kind.type_name)()
    }

    /// The value itself, if its type is `T`.
    pub(crate) fn downcast<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.held).downcast().ok()
    }

    /// Whether the value has no encoding, and so never leaves its owner.
    pub(crate) const fn is_opaque(&self) -> bool {
        self.kind.encode.is_none()
    }

    /// The value's postcard bytes, up to `bytes_max`.
    pub(crate) fn encode(&self, bytes_max: u64) -> Result<Vec<u8>, String> {
        match self.kind.encode {
            Some(encode) => encode(&*self.held, bytes_max),
            None => Err(format!("a `{}` has no encoding", self.type_name())),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Value").field(&self.type_name()).finish()
    }
}

fn encode_erased<T: Serialize + 'static>(
    value: &(dyn Any + Send + Sync),
    bytes_max: u64,
) -> Result<Vec<u8>, String> {
    match value.downcast_ref::<T>() {
        Some(value) => encode(value, bytes_max),
        None => Err(format!("the value is not a `{}`", type_name::<T>())),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_downcasts_to_its_own_type_only() {
        let value = Value::of(7_u64);
        assert_eq!(value.downcast::<u64>().as_deref(), Some(&7));
        assert!(value.downcast::<i64>().is_none());
        assert_eq!(value.type_name(), "u64");
        assert_eq!(value.encode(1), Ok(vec![7]));
        let error = value.encode(0).unwrap_err();
        assert!(
            error.contains("more bytes than message_bytes_max, which is 0"),
            "{error}"
        );
        assert!(!value.is_opaque());
    }

    #[test]
    fn an_opaque_value_has_no_encoding() {
        struct Socket;
        let value = Value::opaque(Socket);
        assert!(value.is_opaque());
        assert!(value.encode(u64::MAX).unwrap_err().contains("no encoding"));
        assert!(value.downcast::<Socket>().is_some());
    }
}
