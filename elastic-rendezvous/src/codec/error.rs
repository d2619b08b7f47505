//! Bytes that are not a rendezvous state.

use thiserror::Error;

/// The longest piece of a stranger's text in a message, in bytes before escaping.
const QUOTED_BYTES_MAX: usize = 60;

/// Why stored bytes were refused as a state, and where.
///
/// Whoever wrote them is at fault: a broken or hostile peer, or something else that uses the key.
/// Nothing of them was taken over.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("rendezvous state, byte {offset}: {kind}")]
pub struct CorruptState {
    /// Bytes to the beginning of the opcode at fault: from the start of the pickle, or of the text
    /// when that is [no base64](CorruptStateKind::NotBase64) or
    /// [too long](CorruptStateKind::TooLong).
    pub offset: usize,
    /// What is wrong.
    pub kind: CorruptStateKind,
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for CorruptState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What is wrong with bytes that were to be a state.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CorruptStateKind {
    /// The text is not what a base64 encoder writes: a foreign character, missing padding.
    #[error("not base64")]
    NotBase64,
    /// The input as a whole is longer than the limit.
    #[error("{bytes} bytes, limit {bytes_max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// More of something than the limit.
    #[error("more than {max} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// The input ends before the state does.
    #[error("the input ends within the state")]
    Truncated,
    /// The opcode is none that a state is written with.
    #[error("opcode 0x{0:02x} is not part of a rendezvous state")]
    ForeignOpcode(u8),
    /// A pickle protocol that does not have the opcodes of a state, or is not known yet.
    #[error("pickle protocol {0} is neither 4 nor 5")]
    ForeignProtocol(u8),
    /// A class that a state does not consist of. Python would load it, and run its code.
    #[error("class {module}.{name} is not part of a rendezvous state")]
    ForeignClass {
        /// The module, escaped and shortened.
        module: String,
        /// The name in the module, escaped and shortened.
        name: String,
    },
    /// A text is not UTF-8.
    #[error("text that is not UTF-8")]
    NotUtf8,
    /// An integer needs more than 64 bits.
    #[error("integer of {bytes} bytes")]
    LargeInteger {
        /// How many bytes it has.
        bytes: usize,
    },
    /// An opcode needs more values than there are.
    #[error("too few values for the opcode")]
    StackUnderflow,
    /// An object is asked for again that was never remembered.
    #[error("memo slot {0} was never written")]
    EmptyMemoSlot(u32),
    /// Something is of another type than its place demands.
    #[error("{what} is {found}, not {expected}")]
    WrongType {
        /// The place.
        what: &'static str,
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A map gets a key without a value.
    #[error("a key without a value")]
    OddItems,
    /// There is a second state, or an object gets its attributes twice.
    #[error("{0} a second time")]
    Again(&'static str),
    /// A node or state lacks an attribute.
    #[error("attribute {0} is missing")]
    MissingAttribute(&'static str),
    /// A node or state has an attribute twice.
    #[error("attribute {0} is there twice")]
    DuplicateAttribute(&'static str),
    /// A time that no calendar has, or outside of the years 1 to 9999 in UTC.
    #[error("a datetime that does not exist")]
    ImpossibleDatetime,
    /// A time zone a day or more off UTC.
    #[error("a time zone a day or more off UTC")]
    ImpossibleTimezone,
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for CorruptStateKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A stranger's text for a message: escaped, and cut where it gets long.
pub(super) fn quoted(text: &[u8]) -> String {
    let shown = &text[..text.len().min(QUOTED_BYTES_MAX)];
    let mut quoted = shown.escape_ascii().to_string();
    if shown.len() < text.len() {
        quoted.push_str("...");
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_where_and_what() {
        let error = CorruptState {
            offset: 12,
            kind: CorruptStateKind::ForeignClass {
                module: quoted(b"os"),
                name: quoted(b"system"),
            },
        };
        assert_eq!(
            error.to_string(),
            "rendezvous state, byte 12: class os.system is not part of a rendezvous state"
        );
    }

    #[test]
    fn a_strangers_text_is_escaped_and_cut() {
        assert_eq!(quoted("a\n\u{1b}[1mü".as_bytes()), r"a\n\x1b[1m\xc3\xbc");
        let long = quoted(&[b'x'; 1000]);
        assert_eq!(long, format!("{}...", "x".repeat(60)));
    }
}
