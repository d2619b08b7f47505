//! Locates the parts of a stored state, so that each can be watched for changes.

use std::ops::Range;

use super::pickle;

/// The bytes and the characters of one base64 group.
const GROUP_BYTES: usize = 3;
const GROUP_CHARS: usize = 4;

/// The length of PROTO and FRAME with their operands. The frame's length depends on the whole state.
const HEAD_BYTES: usize = 11;

/// The length of the opcode and the length byte before an attribute's name.
const NAME_HEAD_BYTES: usize = 2;

/// The indices of the first attribute after the header and of the first after the members.
const PARTICIPANTS_INDEX: usize = 4;
const HEARTBEATS_INDEX: usize = 7;

/// The ranges of characters of a stored state that contain its parts.
///
/// If the characters of a range change, the part *may* have changed; otherwise it has not. Both ranges start
/// at the first attribute. Changes of later attributes do not change a range, so a heartbeat changes neither.
/// Exceptions, which only cost a needless read:
///
/// - Python writes sets in a random order for each process, and repeats equal nodes that are different
///   objects, so the same lists can have other characters when another node writes them.
/// - Beyond 64 KiB (about 700 nodes) a pickle has further frames, whose lengths are among the members. If a
///   frame extends into the heartbeats, a node that is added or removed there changes its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchRanges {
    /// The attributes `round`, `complete`, `deadline` and `closed`.
    pub header: Range<usize>,
    /// All attributes but `last_heartbeats`.
    pub members: Range<usize>,
}

/// The parts as positions in the pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    start: usize,
    header_end: usize,
    members_end: usize,
}

impl Layout {
    /// The layout of `pickle`, whose attributes' names start at `name_places`; `None` if it is not
    /// PyTorch's.
    pub(super) fn of(pickle: &[u8], name_places: &[usize]) -> Option<Self> {
        let start = attributes_start(pickle)?;
        let mut begins = [0; pickle::ATTRIBUTES.len()];
        let mut position = start;
        for (index, name) in pickle::ATTRIBUTES.iter().enumerate() {
            let place = *name_places.get(index)?;
            let begin = place.checked_sub(NAME_HEAD_BYTES)?;
            // It is neither a name from the memo nor a different name.
            let head = [pickle::SHORT_BINUNICODE, name.len() as u8];
            let rest = pickle.get(begin..)?.strip_prefix(&head)?;
            if begin < position || !rest.starts_with(name.as_bytes()) {
                return None;
            }
            begins[index] = begin;
            position = place + name.len();
        }
        (begins[0] == start).then_some(Self {
            start,
            header_end: begins[PARTICIPANTS_INDEX],
            members_end: begins[HEARTBEATS_INDEX],
        })
    }

    /// The characters that encode the parts.
    pub(super) const fn in_text(self) -> WatchRanges {
        let start = self.start / GROUP_BYTES * GROUP_CHARS;
        WatchRanges {
            header: start..end_in_text(self.header_end),
            members: start..end_in_text(self.members_end),
        }
    }
}

/// The end of the characters for a value that ends at byte `end`, and for the next opcode: only that opcode
/// shows that an empty set is still empty.
///
/// The last group contains up to two more bytes, and the first may contain bytes from before the attributes.
/// These never change: they belong to the class and to the next attribute's name.
const fn end_in_text(end: usize) -> usize {
    (end + 1).div_ceil(GROUP_BYTES) * GROUP_CHARS
}

/// The start of the attributes, if all bytes before are PyTorch's: protocol, frame, class, instance, open
/// map.
fn attributes_start(pickle: &[u8]) -> Option<usize> {
    const PARTS: [&[u8]; 5] = [
        &[
            pickle::SHORT_BINUNICODE,
            pickle::RENDEZVOUS_MODULE.len() as u8,
        ],
        pickle::RENDEZVOUS_MODULE.as_bytes(),
        &[
            pickle::MEMOIZE,
            pickle::SHORT_BINUNICODE,
            pickle::STATE.len() as u8,
        ],
        pickle::STATE.as_bytes(),
        &[
            pickle::MEMOIZE,
            pickle::STACK_GLOBAL,
            pickle::MEMOIZE,
            pickle::EMPTY_TUPLE,
            pickle::NEWOBJ,
            pickle::MEMOIZE,
            pickle::EMPTY_DICT,
            pickle::MEMOIZE,
            pickle::MARK,
        ],
    ];
    let (head, class_and_more) = pickle.split_at_checked(HEAD_BYTES)?;
    if head[0] != pickle::PROTO || head[2] != pickle::FRAME {
        return None;
    }
    let attributes = PARTS
        .into_iter()
        .try_fold(class_and_more, |rest, part| rest.strip_prefix(part))?;
    Some(pickle.len() - attributes.len())
}
