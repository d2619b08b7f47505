//! The result of a `compare_set`.

use std::fmt;

/// The result of [`Store::compare_set`](crate::Store::compare_set_bytes): the value of the key after
/// it, and whether this call wrote it.
///
/// | store | [`swapped`](Self::swapped) |
/// |---|---|
/// | `HashStore`, `FileStore` | always known |
/// | `TcpStore` on this crate's server | always known |
/// | `TcpStore` on PyTorch's server | `None` if the reply is `desired`, unless `expected` and `desired` are both empty |
///
/// PyTorch's server replies with a value only. If that is `desired`, either this call wrote it, or the
/// key had that value already. A caller that must know uses a `desired` value that no other worker
/// writes, for instance its own name.
#[derive(Clone, PartialEq, Eq)]
pub struct CompareSet {
    value: Vec<u8>,
    swapped: Option<bool>,
}

impl CompareSet {
    pub(crate) const fn new(value: Vec<u8>, swapped: bool) -> Self {
        Self {
            value,
            swapped: Some(swapped),
        }
    }

    /// Creates the result from the reply of COMPARE_SET (docs/spec/wire.md, COMPARE_SET 1 to 4).
    pub(crate) fn from_answer(answer: Vec<u8>, expected: &[u8], desired: &[u8]) -> Self {
        let swapped = if answer != desired {
            Some(false)
        } else if expected.is_empty() && desired.is_empty() {
            // A missing key and an empty value both match.
            Some(true)
        } else {
            None
        };
        Self {
            value: answer,
            swapped,
        }
    }

    /// Returns whether this call wrote `desired`; `None` if the store does not report it.
    #[must_use]
    pub const fn swapped(&self) -> Option<bool> {
        self.swapped
    }

    /// Returns the value of the key, like PyTorch's `compare_set`: `desired` if it was written. For a missing key and
    /// a non-empty `expected` it is `expected`, and the key is still missing.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the value of the key without a copy. See [`value`](Self::value).
    #[must_use]
    pub fn into_value(self) -> Vec<u8> {
        self.value
    }
}

/// The length of the value only: values can be long and secret.
impl fmt::Debug for CompareSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompareSet")
            .field("swapped", &self.swapped)
            .field("value_bytes", &self.value.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every state of the key, a reported outcome is the true one.
    /// docs/spec/wire-extensions.md, COMPARE_EXCHANGE 2.
    #[test]
    fn a_reported_outcome_is_true() {
        let values: [&[u8]; 4] = [b"", b"a", b"b", b"c"];
        let states = values.map(Some).into_iter().chain([None]);
        let mut unreported = 0;
        for present in states {
            for expected in values {
                for desired in values {
                    let swaps = present.unwrap_or_default() == expected;
                    let answer = if swaps {
                        desired
                    } else {
                        present.unwrap_or(expected)
                    };
                    let result = CompareSet::from_answer(answer.to_vec(), expected, desired);
                    let row = format!("{present:?}, {expected:?}, {desired:?}");
                    assert_eq!(result.value(), answer, "{row}");
                    match result.swapped() {
                        Some(swapped) => assert_eq!(swapped, swaps, "{row}"),
                        None => unreported += 1,
                    }
                    if !swaps && answer != desired {
                        assert_eq!(result.swapped(), Some(false), "{row}");
                    }
                }
            }
        }
        assert!(unreported > 0);
    }

    #[test]
    fn debug_output_shows_no_value() {
        let shown = format!("{:?}", CompareSet::new(b"secret".to_vec(), true));
        assert_eq!(shown, "CompareSet { swapped: Some(true), value_bytes: 6 }");
    }
}
