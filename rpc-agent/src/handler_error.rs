//! The error that a function returns to its caller: text.

use std::fmt;

/// The error of a function, which its caller receives as text. Text beyond 64 KiB is cut.
///
/// Any [`std::error::Error`] converts into it with `?`; the causes are part of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerError {
    message: String,
    /// The answer has more bytes than a message may have.
    is_too_large: bool,
}

impl HandlerError {
    /// Creates an error with this text.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            is_too_large: false,
        }
    }

    /// The answer has too many bytes; the caller receives [`RpcError::TooLarge`](crate::RpcError::TooLarge).
    #[cfg(feature = "typed")]
    pub(crate) const fn too_large(message: String) -> Self {
        Self {
            message,
            is_too_large: true,
        }
    }

    pub(crate) const fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// The text.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// Would conflict with `From<T> for T` if this type implemented `Error`.
impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::new(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_text_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot load the shard")]
        struct Outer(#[source] std::num::ParseIntError);
        let outer = Outer("x".parse::<u8>().unwrap_err());
        assert_eq!(
            HandlerError::from(outer).message(),
            "cannot load the shard: invalid digit found in string"
        );
    }
}
