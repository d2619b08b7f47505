//! What a `compare_set` did, as far as the store's answer tells.

use std::fmt;

/// What [`Store::compare_set`](crate::Store::compare_set_bytes) did: the value of the key after it, and
/// whether this call wrote it.
///
/// | store | [`swapped`](Self::swapped) |
/// |---|---|
/// | `HashStore`, `FileStore` | always known |
/// | `TcpStore` on this crate's server | always known |
/// | `TcpStore` on PyTorch's server | `None` when the answer is `desired`, unless `expected` and `desired` are both empty |
///
/// PyTorch's server answers with a value and nothing else. When that is `desired`, either this call
/// wrote it, or the key held it already. A caller that must know which one uses a `desired` value that
/// no other worker writes, for instance its own name.
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

    /// What the answer of COMPARE_SET tells (docs/wire.md, COMPARE_SET 1 to 4).
    pub(crate) fn from_answer(answer: Vec<u8>, expected: &[u8], desired: &[u8]) -> Self {
        let swapped = if answer != desired {
            Some(false)
        } else if expected.is_empty() && desired.is_empty() {
            // A missing key and an empty value are both as expected.
            Some(true)
        } else {
            None
        };
        Self {
            value: answer,
            swapped,
        }
    }

    /// Whether this call wrote `desired`; `None` when the store's answer does not tell.
    #[must_use]
    pub const fn swapped(&self) -> Option<bool> {
        self.swapped
    }

    /// The value that the key has now, as PyTorch's `compare_set` returns it: `desired` if that was
    /// written. For a missing key whose `expected` was not empty it is `expected`, though the key is
    /// still missing.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// As [`value`](Self::value).
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

    /// Every state of the key against a server that follows the table: what is said to be known is
    /// true.
    #[test]
    fn what_an_answer_tells_is_what_happened() {
        let values: [&[u8]; 4] = [b"", b"a", b"b", b"c"];
        let states = values.map(Some).into_iter().chain([None]);
        let mut untold = 0;
        for present in states {
            for expected in values {
                for desired in values {
                    let swaps = present.unwrap_or_default() == expected;
                    let answer = if swaps {
                        desired
                    } else {
                        present.unwrap_or(expected)
                    };
                    let told = CompareSet::from_answer(answer.to_vec(), expected, desired);
                    let row = format!("{present:?}, {expected:?}, {desired:?}");
                    assert_eq!(told.value(), answer, "{row}");
                    match told.swapped() {
                        Some(swapped) => assert_eq!(swapped, swaps, "{row}"),
                        None => untold += 1,
                    }
                    if !swaps && answer != desired {
                        assert_eq!(told.swapped(), Some(false), "{row}");
                    }
                }
            }
        }
        assert!(untold > 0);
    }

    #[test]
    fn debug_output_shows_no_value() {
        let shown = format!("{:?}", CompareSet::new(b"secret".to_vec(), true));
        assert_eq!(shown, "CompareSet { swapped: Some(true), value_bytes: 6 }");
    }
}
