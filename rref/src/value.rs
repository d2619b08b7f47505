//! A value on its owner, whatever its type.
//!
//! Knows how to make bytes of it, if its type can, and nothing of references.

use std::any::{Any, type_name};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::carry;
use crate::handle::type_name_of;

/// What can be done with a value whose type has an encoding.
#[derive(Clone, Copy)]
struct Codec {
    encode: fn(&(dyn Any + Send + Sync)) -> Result<Vec<u8>, String>,
    walk: fn(&(dyn Any + Send + Sync)),
}

/// A value that references are to. Cheap to clone: the value itself is shared.
#[derive(Clone)]
pub(crate) struct Value {
    held: Arc<dyn Any + Send + Sync>,
    type_name: &'static str,
    /// `None` for a value that never leaves its owner.
    codec: Option<Codec>,
}

impl Value {
    /// A value that can be fetched.
    pub(crate) fn of<T: Serialize + Send + Sync + 'static>(value: T) -> Self {
        Self {
            held: Arc::new(value),
            type_name: type_name_of::<T>(),
            codec: Some(Codec {
                encode: encode::<T>,
                walk: walk::<T>,
            }),
        }
    }

    /// A value that never leaves its owner.
    pub(crate) fn opaque<T: Send + Sync + 'static>(value: T) -> Self {
        Self {
            held: Arc::new(value),
            type_name: type_name_of::<T>(),
            codec: None,
        }
    }

    pub(crate) const fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// The value itself, if it is one of `T`.
    pub(crate) fn downcast<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.held).downcast().ok()
    }

    /// Whether it never leaves its owner.
    pub(crate) const fn is_opaque(&self) -> bool {
        self.codec.is_none()
    }

    /// Its bytes, for a message that is being packed.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        match self.codec {
            Some(codec) => (codec.encode)(&*self.held),
            None => Err(format!("a `{}` has no encoding", self.type_name)),
        }
    }

    /// Goes through all of it as [`Value::encode`] does, without making bytes: the references in it are
    /// met. Through nothing of a value that never leaves its owner.
    pub(crate) fn walk(&self) {
        if let Some(codec) = self.codec {
            (codec.walk)(&*self.held);
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Value").field(&self.type_name).finish()
    }
}

fn encode<T: Serialize + 'static>(value: &(dyn Any + Send + Sync)) -> Result<Vec<u8>, String> {
    match value.downcast_ref::<T>() {
        Some(value) => carry::encode(value),
        None => Err(format!("the value is no `{}`", type_name::<T>())),
    }
}

fn walk<T: Serialize + 'static>(value: &(dyn Any + Send + Sync)) {
    if let Some(value) = value.downcast_ref::<T>() {
        carry::walk(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_given_out_as_its_own_type_only() {
        let value = Value::of(7_u64);
        assert_eq!(value.downcast::<u64>().as_deref(), Some(&7));
        assert!(value.downcast::<i64>().is_none());
        assert_eq!(value.type_name(), "u64");
        assert_eq!(value.encode(), Ok(vec![7]));
        assert!(!value.is_opaque());
    }

    #[test]
    fn an_opaque_value_has_no_bytes() {
        struct Socket;
        let value = Value::opaque(Socket);
        assert!(value.is_opaque());
        assert!(value.encode().unwrap_err().contains("no encoding"));
        assert!(value.downcast::<Socket>().is_some());
    }
}
