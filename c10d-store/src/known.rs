//! The known value that a wait for a change compares with.

use std::fmt;
use std::ops::Range;

/// The part of a value that the caller of [`StoreExt::wait_change`](crate::StoreExt::wait_change) has: the whole
/// value, the bytes of one range, or nothing. A value *differs* if it does not match.
///
/// ```
/// use c10d_store::Known;
///
/// let whole = Known::whole(b"round 7, beat 1");
/// assert!(whole.is_outdated_by(b"round 7, beat 2"));
///
/// // Compares only the round.
/// let round = Known::part(b"round 7, beat 1", 0..7);
/// assert!(!round.is_outdated_by(b"round 7, beat 23"));
/// assert!(round.is_outdated_by(b"round 8, beat 1"));
/// assert!(round.is_outdated_by(b"round"));
///
/// assert!(Known::nothing().is_outdated_by(b""));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Known<'a> {
    offset: usize,
    bytes: &'a [u8],
    /// The length of the whole value; `None` matches any length.
    len: Option<usize>,
}

impl<'a> Known<'a> {
    /// Compares with a whole value: a longer or shorter value, or one with another byte, differs.
    #[must_use]
    pub const fn whole(value: &'a [u8]) -> Self {
        Self::new(0, value, Some(value.len()))
    }

    /// Compares with the bytes of `value` in `range`. Bytes outside of it and the length do not matter, except that a value
    /// that ends before the range differs.
    ///
    /// A range that is not within `value` is the same as [`nothing`](Self::nothing), so that this
    /// mistake makes a wait return early instead of hang.
    #[must_use]
    pub fn part(value: &'a [u8], range: Range<usize>) -> Self {
        let offset = range.start;
        match value.get(range) {
            Some(bytes) => Self::new(offset, bytes, None),
            None => Self::nothing(),
        }
    }

    /// Adds the length of the whole value in bytes: a longer or shorter value differs.
    #[must_use]
    pub const fn with_len(self, len: usize) -> Self {
        Self::new(self.offset, self.bytes, Some(len))
    }

    /// Compares with nothing: any value differs, including an empty value.
    #[must_use]
    pub const fn nothing() -> Self {
        // This is longer than any value.
        Self::new(usize::MAX, &[], None)
    }

    pub(crate) const fn new(offset: usize, bytes: &'a [u8], len: Option<usize>) -> Self {
        Self { offset, bytes, len }
    }

    /// The number of bytes before the known ones; [`usize::MAX`] if nothing is known.
    #[must_use]
    pub(crate) const fn offset(&self) -> usize {
        self.offset
    }

    /// The known bytes.
    #[must_use]
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The length of the whole value in bytes; `None` if it does not matter.
    #[must_use]
    pub(crate) const fn len(&self) -> Option<usize> {
        self.len
    }

    /// Returns whether `value` does not match. Compares up to the first difference.
    #[must_use]
    pub fn is_outdated_by(&self, value: &[u8]) -> bool {
        let same_length = self.len.is_none_or(|len| len == value.len());
        let same_bytes = || {
            let rest = value.get(self.offset..);
            rest.is_some_and(|rest| rest.starts_with(self.bytes))
        };
        !(same_length && same_bytes())
    }
}

/// Lengths only: values can be long and secret.
impl fmt::Debug for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known")
            .field("offset", &self.offset)
            .field("byte_count", &self.bytes.len())
            .field("len", &self.len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/spec/wire-extensions.md, WAIT_CHANGE 1.
    #[test]
    fn a_value_differs_in_the_known_bytes_or_the_known_length() {
        let value = b"abcdef";
        #[rustfmt::skip]
        let table: [(&str, Known<'_>, &[u8], bool); 20] = [
            ("the same", Known::whole(value), b"abcdef", false),
            ("another byte", Known::whole(value), b"abcdeg", true),
            ("longer", Known::whole(value), b"abcdefg", true),
            ("shorter", Known::whole(value), b"abcde", true),
            ("empty, known as such", Known::whole(b""), b"", false),
            ("no longer empty", Known::whole(b""), b"x", true),
            ("the part is the same", Known::part(value, 2..4), b"..cd..", false),
            ("longer behind the part", Known::part(value, 2..4), b"..cd......", false),
            ("ends with the part", Known::part(value, 2..4), b"..cd", false),
            ("another byte in the part", Known::part(value, 2..4), b"abce", true),
            ("ends within the part", Known::part(value, 2..4), b"abc", true),
            ("ends before the part", Known::part(value, 2..4), b"a", true),
            ("an empty part within the value", Known::part(value, 6..6), b"......", false),
            ("an empty part beyond the value", Known::part(value, 6..6), b".....", true),
            ("a part of something shorter", Known::part(value, 4..7), value, true),
            ("a part and the length", Known::part(value, 2..4).with_len(6), b"..cd..", false),
            ("the part, but longer", Known::part(value, 2..4).with_len(6), b"..cd...", true),
            ("the length, another part", Known::part(value, 2..4).with_len(6), b"..ce..", true),
            ("nothing, and a value", Known::nothing(), value, true),
            ("nothing, and an empty value", Known::nothing(), b"", true),
        ];
        for (what, known, value, differs) in table {
            assert_eq!(known.is_outdated_by(value), differs, "{what}");
        }
    }

    #[test]
    fn the_largest_offset_is_beyond_every_value() {
        assert!(Known::new(usize::MAX, b"x", None).is_outdated_by(b"x"));
        assert!(Known::new(usize::MAX - 1, b"xyz", Some(3)).is_outdated_by(b"xyz"));
    }

    #[test]
    fn a_reversed_range_equals_nothing() {
        #[expect(
            clippy::reversed_empty_ranges,
            reason = "the test passes a reversed range"
        )]
        let known = Known::part(b"abc", 2..1);
        assert_eq!(known, Known::nothing());
    }

    #[test]
    fn debug_output_shows_no_value() {
        let shown = format!("{:?}", Known::whole(b"secret"));
        assert!(!shown.contains("115"), "the code of an s: {shown}");
        assert!(shown.contains("byte_count: 6"), "{shown}");
    }
}
