//! The rules of `add`, `compare_set` and `queue_take` that several stores share. Pure.

use c10d_socket::printable;

use crate::decimal::parse_decimal;
use crate::error::{ErrorContext, StoreError};

/// The sum of `add`, or `None` if the current value is not a number. Overflow wraps.
///
/// A missing or empty value counts as 0, like in PyTorch's local stores. (The TCP server refuses an empty value, like
/// PyTorch's server.)
pub(crate) fn sum(present: Option<&[u8]>, delta: i64) -> Option<i64> {
    let present = match present {
        None | Some([]) => 0,
        Some(text) => parse_decimal(text)?,
    };
    Some(present.wrapping_add(delta))
}

/// Whether `compare_set` writes: the current value equals the expected one. A missing value equals an
/// empty one.
pub(crate) fn is_expected(present: Option<&[u8]>, expected: &[u8]) -> bool {
    present.unwrap_or_default() == expected
}

/// The result of a `compare_set` that did not write: the current value, or for a missing key the expected value, like
/// in PyTorch.
pub(crate) fn refusal<'a>(present: Option<&'a [u8]>, expected: &'a [u8]) -> &'a [u8] {
    present.unwrap_or(expected)
}

/// Refuses a maximum of no elements: a server closes the connection on it.
pub(crate) fn check_take_max(
    max: usize,
    context: impl FnOnce() -> ErrorContext,
) -> Result<(), StoreError> {
    if max > 0 {
        return Ok(());
    }
    Err(StoreError::InvalidArgument {
        context: context(),
        detail: "the maximum of elements must be at least 1".to_owned(),
    })
}

/// A value as an error message shows it.
pub(crate) fn shorten(value: &[u8]) -> String {
    shorten_head(value, value.len())
}

/// A value of `length` bytes that starts with `head`, as an error message shows it.
pub(crate) fn shorten_head(head: &[u8], length: usize) -> String {
    const SHOWN_MAX: usize = 40;
    let shown = &head[..head.len().min(SHOWN_MAX)];
    let mut text = printable(shown, SHOWN_MAX).to_string();
    if shown.len() < length {
        text.push_str(&format!("... ({length} bytes)"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_accepts_missing_and_empty_values_and_numbers() {
        assert_eq!(sum(None, 5), Some(5));
        assert_eq!(sum(Some(b""), 5), Some(5));
        assert_eq!(sum(Some(b" 12abc"), 1), Some(13));
        assert_eq!(sum(Some(b"abc"), 1), None);
        assert_eq!(sum(Some(b"9223372036854775807"), 1), Some(i64::MIN));
        assert_eq!(sum(Some(b"-9223372036854775808"), -1), Some(i64::MAX));
    }

    #[test]
    fn an_error_shows_the_head_of_a_long_value() {
        assert_eq!(shorten(b"12x"), "12x");
        let shown = shorten(&[b'a'; 1 << 20]);
        assert_eq!(shown, format!("{}... (1048576 bytes)", "a".repeat(40)));
    }
}
