//! Where in a stored state its parts are, for whoever watches one of them for changes.

use std::ops::Range;

use super::names;
use super::opcode as op;

/// A pickle's bytes and a text's characters that make up one group of base64.
const GROUP_BYTES: usize = 3;
const GROUP_CHARS: usize = 4;

/// The head of a pickle: PROTO and FRAME with their operands. The frame's length changes with
/// everything.
const HEAD_BYTES: usize = 11;

/// The opcode and the length before an attribute's name.
const NAME_HEAD_BYTES: usize = 2;

/// Which attribute is the first that is not in the header, and which is not among the members.
const PARTICIPANTS_INDEX: usize = 4;
const HEARTBEATS_INDEX: usize = 7;

/// Which characters of a stored state say what, for watching the value for changes of a part.
///
/// Whoever knows a state and sees the characters of a range change knows that the part *may* have
/// changed; while they stay, it has not. Both ranges begin where the attributes begin.
///
/// What does not change a range: a change of later attributes. So a heartbeat changes neither. There
/// are exceptions, which cost nothing but a look at a state that is the same in that part:
///
/// - Python writes sets in an order of its own in each process, and a node twice that it holds
///   twice, so the same lists may look different when another node writes them.
/// - Beyond 64 KiB (some 700 nodes) a pickle has further frames, whose lengths are among the members.
///   Where a frame reaches into the heartbeats, a node that comes or goes there changes its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchRanges {
    /// The attributes `round`, `complete`, `deadline` and `closed`.
    pub header: Range<usize>,
    /// These, `participants`, `wait_list` and `redundancy_list`: all but `last_heartbeats`.
    pub members: Range<usize>,
}

/// The same in bytes of the pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    start: usize,
    header_end: usize,
    members_end: usize,
}

impl Layout {
    /// The layout of `pickle`, in whose attributes the names' characters are at `name_places`; `None`
    /// when it is not PyTorch's.
    pub(super) fn of(pickle: &[u8], name_places: &[usize]) -> Option<Self> {
        let start = attributes_start(pickle)?;
        let mut begins = [0; names::ATTRIBUTES.len()];
        let mut position = start;
        for (index, name) in names::ATTRIBUTES.iter().enumerate() {
            let place = *name_places.get(index)?;
            let begin = place.checked_sub(NAME_HEAD_BYTES)?;
            // Not one that was written earlier and is only asked for again, nor another.
            let head = [op::SHORT_BINUNICODE, name.len() as u8];
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

    /// The characters that hold these bytes.
    pub(super) const fn in_text(self) -> WatchRanges {
        let start = self.start / GROUP_BYTES * GROUP_CHARS;
        WatchRanges {
            header: start..end_in_text(self.header_end),
            members: start..end_in_text(self.members_end),
        }
    }
}

/// The end of the characters that hold a value which ends at byte `end`, and the opcode behind it:
/// only that shows that a set which was empty still is.
///
/// The last group holds up to two bytes more, and the first group may hold some from before the
/// attributes. Those are always the same: parts of the class and of the next attribute's name.
const fn end_in_text(end: usize) -> usize {
    (end + 1).div_ceil(GROUP_BYTES) * GROUP_CHARS
}

/// Where the attributes begin, if all before them is as PyTorch writes it: protocol, one frame, the
/// class, an instance, its open map.
fn attributes_start(pickle: &[u8]) -> Option<usize> {
    const PARTS: [&[u8]; 5] = [
        &[op::SHORT_BINUNICODE, names::RENDEZVOUS_MODULE.len() as u8],
        names::RENDEZVOUS_MODULE.as_bytes(),
        &[op::MEMOIZE, op::SHORT_BINUNICODE, names::STATE.len() as u8],
        names::STATE.as_bytes(),
        &[
            op::MEMOIZE,
            op::STACK_GLOBAL,
            op::MEMOIZE,
            op::EMPTY_TUPLE,
            op::NEWOBJ,
            op::MEMOIZE,
            op::EMPTY_DICT,
            op::MEMOIZE,
            op::MARK,
        ],
    ];
    let (head, class_and_more) = pickle.split_at_checked(HEAD_BYTES)?;
    if head[0] != op::PROTO || head[2] != op::FRAME {
        return None;
    }
    let attributes = PARTS
        .into_iter()
        .try_fold(class_and_more, |rest, part| rest.strip_prefix(part))?;
    Some(pickle.len() - attributes.len())
}
