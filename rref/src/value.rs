//! A value on its owner, with its type erased.
//!
//! Encodes itself if its type implements `Serialize`. Knows neither references nor the agent.

use std::any::{Any, type_name};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::codec;
use crate::codec::type_name_of;

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
                    encode: Some(encode::<T>),
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

fn encode<T: Serialize + 'static>(
    value: &(dyn Any + Send + Sync),
    bytes_max: u64,
) -> Result<Vec<u8>, String> {
    match value.downcast_ref::<T>() {
        Some(value) => codec::encode(value, bytes_max),
        None => Err(format!("the value is not a `{}`", type_name::<T>())),
    }
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
