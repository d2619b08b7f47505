//! Errors and limits of the decoder.

use c10d_socket::printable;
use thiserror::Error;

/// The longest piece of a peer's text in a message, in bytes before escaping.
const QUOTED_CHARS_MAX: usize = 60;

/// The reason and the place of a failure to decode stored bytes as a state.
///
/// Their writer is at fault: a broken or hostile peer, or another user of the key.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("rendezvous state, byte {offset}: {kind}")]
pub struct CorruptState {
    /// The position of the invalid opcode in the pickle; or a position in the text if that is
    /// [not base64](CorruptStateKind::NotBase64) or [too long](CorruptStateKind::TooLong).
    pub offset: usize,
    /// The kind of the fault.
    pub kind: CorruptStateKind,
}

c10d_socket::debug_as_display!(CorruptState);

/// The fault in the encoding of a state.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CorruptStateKind {
    /// The text is not the output of a base64 encoder: an invalid character, missing padding.
    #[error("not base64")]
    NotBase64,
    /// The input is longer than the limit.
    #[error("{bytes} bytes, limit {bytes_max}")]
    TooLong {
        /// The length of the input.
        bytes: usize,
        /// The limit that was exceeded.
        bytes_max: usize,
    },
    /// A count exceeds its limit.
    #[error("more than {max} {what}")]
    TooMany {
        /// The counted objects, in words.
        what: &'static str,
        /// The limit that was exceeded.
        max: usize,
    },
    /// The input ends before the state.
    #[error("the input ends within the state")]
    Truncated,
    /// The opcode does not occur in a state.
    #[error("opcode 0x{0:02x} is not part of a rendezvous state")]
    ForeignOpcode(u8),
    /// A pickle protocol other than 4 and 5.
    #[error("pickle protocol {0} is neither 4 nor 5")]
    ForeignProtocol(u8),
    /// A class that does not occur in a state. Python would import it and run its code.
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
        /// The integer's length in bytes.
        bytes: usize,
    },
    /// An opcode needs more values than the stack has.
    #[error("too few values for the opcode")]
    StackUnderflow,
    /// A memo slot is read before it is written.
    #[error("memo slot {0} was never written")]
    EmptyMemoSlot(u32),
    /// A value has the wrong type.
    #[error("{what} is {found}, not {expected}")]
    WrongType {
        /// The place of the value, in words.
        what: &'static str,
        /// The type that the value should have.
        expected: &'static str,
        /// The type of the value.
        found: &'static str,
    },
    /// A map has a key without a value.
    #[error("a key without a value")]
    OddItems,
    /// A second state, or a second set of attributes of an object.
    #[error("{0} a second time")]
    Again(&'static str),
    /// A node or state lacks an attribute.
    #[error("attribute {0} is missing")]
    MissingAttribute(&'static str),
    /// A node or state repeats an attribute.
    #[error("attribute {0} is repeated")]
    DuplicateAttribute(&'static str),
    /// An impossible date or time, or one outside of the years 1 to 9999 in UTC.
    #[error("a datetime that does not exist")]
    ImpossibleDatetime,
    /// A time zone with an offset of a day or more.
    #[error("a time zone a day or more off UTC")]
    ImpossibleTimezone,
}

c10d_socket::debug_as_display!(CorruptStateKind);

/// Formats a peer's text for a message: escaped and shortened.
pub(super) fn quoted(text: &[u8]) -> String {
    printable(text, QUOTED_CHARS_MAX).to_string()
}

/// Limits on a stored state, each checked before memory is reserved.
///
/// PyTorch has none. The defaults allow tens of thousands of nodes, and bound the memory for a hostile state
/// at about 100 MB.
///
/// ```
/// use elastic_rendezvous::codec::CodecLimits;
///
/// let limits = CodecLimits { nodes_max: 1000, ..CodecLimits::default() };
/// assert_eq!(limits.text_bytes_max, 8 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecLimits {
    /// The longest state, in bytes of base64. Default: 8 MiB, the longest value in PyTorch's stores, enough for
    /// about 70,000 nodes.
    pub text_bytes_max: usize,
    /// The most nodes; a repeated node counts each time. Default: 65,536.
    pub nodes_max: usize,
    /// The most values on the pickle machine's stack. PyTorch needs about 2,000, because it writes maps in
    /// batches of 1000 entries; other writers need two per node. Default: 262,144, which is not reached before
    /// the other limits.
    pub stack_max: usize,
    /// The most objects of each kind: memo slots, containers, entries of containers. PyTorch needs seven memo
    /// slots per node. Default: 524,288.
    pub objects_max: usize,
}

impl Default for CodecLimits {
    fn default() -> Self {
        Self {
            text_bytes_max: 8 << 20,
            nodes_max: 1 << 16,
            stack_max: 1 << 18,
            objects_max: 1 << 19,
        }
    }
}

impl CodecLimits {
    /// The longest pickle: the longest text has it, and it is at most the range of the machine's positions.
    pub(super) fn pickle_bytes_max(&self) -> usize {
        (self.text_bytes_max / 4)
            .saturating_mul(3)
            .min(u32::MAX as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_position_and_the_fault() {
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
    fn text_of_peers_is_escaped_and_shortened() {
        assert_eq!(quoted("a\n\u{1b}[1mü".as_bytes()), r"a\n\u{1b}[1mü");
        let long = quoted(&[b'x'; 1000]);
        assert_eq!(long, format!("{}…", "x".repeat(59)));
    }
}
