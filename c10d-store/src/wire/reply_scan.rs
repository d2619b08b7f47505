//! Finds the end of a reply, for relays.

use byteorder::{ByteOrder, LittleEndian};

use super::handshake::REFUSED_NONCE;
use super::opcode::Opcode;
use super::reply::{
    ADDED, EXCHANGED, FULL, NOT_A_NUMBER, NOT_EXCHANGED, NOT_OWNED, OWNED, STOP_WAITING,
    TOO_MANY_OWNED, WAIT_CANCELED,
};

/// The length of a count, a length or a number.
const WORD_BYTES: usize = 8;

/// The bytes are not the reply to the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reply to {opcode:?} has 0x{byte:02x} as its first byte")]
pub struct NotAReply {
    opcode: Opcode,
    byte: u8,
}

/// The progress in the reply to one request. Replies have no length (docs/spec/wire.md, section 2), so their end
/// follows from the request.
///
/// ```
/// use c10d_store::Opcode;
/// use c10d_store::unstable::{ReplyScan};
///
/// let mut scan = ReplyScan::new(Opcode::Get, 1).expect("GET has a reply");
/// let mut bytes = &[2, 0, 0, 0, 0, 0, 0, 0, b'h'][..];
/// assert!(!scan.advance(&mut bytes)?);
/// let mut bytes = &[b'i', 7][..];
/// assert!(scan.advance(&mut bytes)?);
/// assert_eq!(bytes, [7], "the start of the next reply");
/// # Ok::<(), c10d_store::unstable::NotAReply>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ReplyScan {
    opcode: Opcode,
    key_count: u64,
    state: State,
    /// The word being read.
    word: [u8; WORD_BYTES],
    word_bytes: u8,
    has_begun: bool,
    /// A CANCEL_WAIT follows the request.
    is_cancelled: bool,
    /// The answer to a CANCEL_WAIT that the reply has crossed follows last.
    has_tail: bool,
    /// The wait was ended by END_WAITS, and not cancelled before the client was informed.
    was_ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// This many bytes, then this many blobs.
    Bytes { left: u64, blobs: u64 },
    /// The length of a blob, after which others follow.
    Length { blobs: u64 },
    /// The number of blobs that follow.
    Count,
    /// The length of a queue; one blob follows unless it is 0.
    QueueLength,
    /// The first byte determines the rest.
    Status,
    /// Two sizes follow one nonce.
    Nonce,
}

impl ReplyScan {
    /// Begins the reply to a request with this many keys. `None` for a command without a reply, and for SESSION.
    #[must_use]
    pub const fn new(opcode: Opcode, key_count: usize) -> Option<Self> {
        let key_count = key_count as u64;
        let state = match opcode {
            Opcode::Validate
            | Opcode::Set
            | Opcode::Append
            | Opcode::MultiSet
            | Opcode::QueuePush
            | Opcode::Announce
            | Opcode::Session => return None,
            Opcode::CompareSet | Opcode::Get => State::Length { blobs: 1 },
            Opcode::MultiGet => State::Length { blobs: key_count },
            Opcode::Membership => State::Length { blobs: 2 },
            Opcode::Add
            | Opcode::GetNumKeys
            | Opcode::DeleteKey
            | Opcode::QueueLen
            | Opcode::DeletePrefix
            | Opcode::EndWaits => fixed(WORD_BYTES as u64),
            Opcode::Check | Opcode::CancelWait | Opcode::KeepAlive => fixed(1),
            Opcode::Ping => State::Nonce,
            Opcode::QueuePop => State::QueueLength,
            Opcode::ListKeys => State::Count,
            Opcode::Wait
            | Opcode::Barrier
            | Opcode::WaitGet
            | Opcode::WaitChange
            | Opcode::TryAdd
            | Opcode::CompareExchange
            | Opcode::QueueTake
            | Opcode::SetEphemeral
            | Opcode::MembershipPoll => State::Status,
        };
        Some(Self {
            opcode,
            key_count,
            state,
            word: [0; WORD_BYTES],
            word_bytes: 0,
            has_begun: false,
            is_cancelled: false,
            has_tail: false,
            was_ended: false,
        })
    }

    /// The reply to the same request, before its first byte has arrived.
    pub(crate) const fn begun_anew(&self) -> Self {
        match Self::new(self.opcode, self.key_count as usize) {
            Some(scan) => Self {
                is_cancelled: self.is_cancelled,
                ..scan
            },
            // There is no such request.
            None => *self,
        }
    }

    /// Returns the command of the request.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Returns whether some of the reply has arrived.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns whether the client has sent a CANCEL_WAIT after this wait, whose answer then belongs to the reply.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Whether END_WAITS has ended this wait: a CANCEL_WAIT that follows as the next request has no separate answer
    /// (docs/spec/wire-extensions.md, END_WAITS 2).
    pub(crate) const fn was_ended(&self) -> bool {
        self.was_ended
    }

    /// Reports that the client has sent a CANCEL_WAIT after this wait.
    pub const fn cancel(&mut self) {
        self.is_cancelled = true;
        self.has_tail = self.has_begun;
    }

    /// Takes the bytes of the reply from the front of `bytes`. Returns whether it is complete.
    ///
    /// # Errors
    /// The bytes are not a reply to the request.
    pub fn advance(&mut self, bytes: &mut &[u8]) -> Result<bool, NotAReply> {
        loop {
            match self.state {
                State::Bytes { left: 0, blobs: 0 } | State::Length { blobs: 0 } => {
                    if !std::mem::take(&mut self.has_tail) {
                        return Ok(true);
                    }
                    self.state = fixed(1);
                }
                _ if bytes.is_empty() => return Ok(false),
                State::Bytes { left: 0, blobs } => self.state = State::Length { blobs },
                State::Bytes { left, blobs } => {
                    let available = usize::try_from(left).unwrap_or(usize::MAX);
                    let count = available.min(bytes.len());
                    *bytes = &bytes[count..];
                    self.has_begun = true;
                    self.state = State::Bytes {
                        left: left - count as u64,
                        blobs,
                    };
                }
                State::Length { blobs } => {
                    let Some(left) = self.word(bytes) else {
                        return Ok(false);
                    };
                    self.state = State::Bytes {
                        left,
                        blobs: blobs - 1,
                    };
                }
                State::Count => {
                    let Some(blobs) = self.word(bytes) else {
                        return Ok(false);
                    };
                    self.state = State::Length { blobs };
                }
                State::QueueLength => {
                    let Some(length) = self.word(bytes) else {
                        return Ok(false);
                    };
                    self.state = State::Length {
                        blobs: u64::from(length > 0),
                    };
                }
                State::Nonce => {
                    let Some(nonce) = self.number(bytes, 4) else {
                        return Ok(false);
                    };
                    let is_refused = nonce == u64::from(REFUSED_NONCE);
                    self.state = fixed(if is_refused { 2 * WORD_BYTES as u64 } else { 0 });
                }
                State::Status => {
                    let status = bytes[0];
                    *bytes = &bytes[1..];
                    self.has_begun = true;
                    self.state = self.after_status(status)?;
                }
            }
        }
    }

    fn after_status(&mut self, status: u8) -> Result<State, NotAReply> {
        let waits = self.opcode.is_wait();
        self.has_tail = waits && self.is_cancelled && matches!(status, STOP_WAITING | FULL);
        self.was_ended = waits && !self.is_cancelled && status == WAIT_CANCELED;
        Ok(match (self.opcode, status) {
            (Opcode::TryAdd, ADDED) => fixed(WORD_BYTES as u64),
            (Opcode::TryAdd, NOT_A_NUMBER) => State::Bytes {
                left: WORD_BYTES as u64,
                blobs: 1,
            },
            (Opcode::CompareExchange, EXCHANGED) => fixed(0),
            (Opcode::CompareExchange, NOT_EXCHANGED) => State::Length { blobs: 1 },
            (Opcode::SetEphemeral, OWNED | TOO_MANY_OWNED) => fixed(0),
            (Opcode::SetEphemeral, NOT_OWNED) => State::Length { blobs: 1 },
            (
                Opcode::TryAdd
                | Opcode::CompareExchange
                | Opcode::SetEphemeral
                | Opcode::WaitGet
                | Opcode::WaitChange,
                FULL,
            ) => fixed(2 * WORD_BYTES as u64),
            (Opcode::Wait | Opcode::Barrier, STOP_WAITING) => fixed(0),
            (Opcode::WaitGet, STOP_WAITING) => State::Length {
                blobs: self.key_count,
            },
            (Opcode::WaitChange, STOP_WAITING) => State::Length { blobs: 1 },
            (Opcode::QueueTake, STOP_WAITING) => State::Count,
            (Opcode::MembershipPoll, STOP_WAITING) => State::Length { blobs: 2 },
            (_, WAIT_CANCELED) if waits => fixed(0),
            (opcode, byte) => return Err(NotAReply { opcode, byte }),
        })
    }

    /// Reads a word; `None` if it is not complete.
    fn word(&mut self, bytes: &mut &[u8]) -> Option<u64> {
        self.number(bytes, WORD_BYTES)
    }

    /// Reads a number of this many bytes, at most a word; `None` if it is not complete.
    fn number(&mut self, bytes: &mut &[u8], size: usize) -> Option<u64> {
        let have = usize::from(self.word_bytes);
        let count = (size - have).min(bytes.len());
        self.word[have..have + count].copy_from_slice(&bytes[..count]);
        *bytes = &bytes[count..];
        self.has_begun = true;
        if have + count < size {
            self.word_bytes += count as u8;
            return None;
        }
        self.word_bytes = 0;
        Some(LittleEndian::read_uint(&self.word, size))
    }
}

const fn fixed(left: u64) -> State {
    State::Bytes { left, blobs: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(bytes: &[u8]) -> Vec<u8> {
        [&[bytes.len() as u8, 0, 0, 0, 0, 0, 0, 0], bytes].concat()
    }

    /// The number of bytes of the reply, with one more byte after it; the same for any split.
    fn length(scan: ReplyScan, reply: &[u8]) -> usize {
        let bytes = [reply, &[0xee]].concat();
        let lengths = (1..=bytes.len()).map(|piece| {
            let (mut scan, mut length) = (scan, 0);
            for mut rest in bytes.chunks(piece) {
                let before = rest.len();
                let is_complete = scan.advance(&mut rest).expect("a reply");
                length += before - rest.len();
                if is_complete {
                    break;
                }
            }
            length
        });
        let lengths: Vec<usize> = lengths.collect();
        assert!(
            lengths.iter().all(|length| *length == lengths[0]),
            "{lengths:?}"
        );
        lengths[0]
    }

    /// docs/spec/wire-extensions.md, WAIT_GET 5, END_WAITS 1, and REFUSAL 2 and 3.
    #[test]
    fn replies_of_extensions_and_of_cancelled_waits_end_where_they_should() {
        let full = [vec![3], vec![7; 16]].concat();
        let cases: [(Opcode, usize, bool, Vec<u8>); 26] = [
            (Opcode::Ping, 0, false, vec![0, 0, 0x0e, 0xc1]),
            (
                Opcode::Ping,
                0,
                false,
                [vec![1, 0, 0x0e, 0xc1], vec![7; 16]].concat(),
            ),
            (Opcode::TryAdd, 0, false, full.clone()),
            (Opcode::WaitGet, 1, false, full.clone()),
            (Opcode::WaitGet, 1, true, [full, vec![1]].concat()),
            (Opcode::SetEphemeral, 0, false, vec![0]),
            (
                Opcode::SetEphemeral,
                0,
                false,
                [vec![1], blob(b"other")].concat(),
            ),
            (Opcode::SetEphemeral, 0, false, vec![2]),
            (Opcode::KeepAlive, 0, false, vec![1]),
            (
                Opcode::WaitGet,
                2,
                false,
                [vec![0], blob(b"a"), blob(b"")].concat(),
            ),
            (Opcode::WaitGet, 0, false, vec![0]),
            (
                Opcode::WaitGet,
                2,
                true,
                [vec![0], blob(b"a"), blob(b""), vec![1]].concat(),
            ),
            (Opcode::WaitGet, 2, true, vec![1]),
            (
                Opcode::WaitChange,
                0,
                true,
                [vec![0], blob(b"new"), vec![1]].concat(),
            ),
            (Opcode::Wait, 1, true, vec![0, 1]),
            (Opcode::Wait, 1, true, vec![1]),
            (Opcode::Wait, 1, false, vec![1]),
            (Opcode::QueueTake, 0, false, vec![1]),
            (Opcode::EndWaits, 0, false, vec![0; 8]),
            (Opcode::Barrier, 0, false, vec![0]),
            (
                Opcode::QueueTake,
                0,
                false,
                [vec![0, 2, 0, 0, 0, 0, 0, 0, 0], blob(b"x"), blob(b"yz")].concat(),
            ),
            (Opcode::QueueTake, 0, true, vec![1]),
            (Opcode::TryAdd, 0, false, vec![0; 9]),
            (
                Opcode::TryAdd,
                0,
                false,
                [vec![1; 9], blob(b"abc")].concat(),
            ),
            (Opcode::CompareExchange, 0, false, vec![1]),
            (
                Opcode::CompareExchange,
                0,
                false,
                [vec![0], blob(b"other")].concat(),
            ),
        ];
        for (opcode, keys, is_cancelled, reply) in cases {
            let mut scan = ReplyScan::new(opcode, keys).expect("it has a reply");
            if is_cancelled {
                scan.cancel();
            }
            assert_eq!(length(scan, &reply), reply.len(), "{opcode:?} {reply:?}");
        }
    }

    #[test]
    fn a_cancel_while_the_reply_arrives_belongs_to_it() {
        let mut scan = ReplyScan::new(Opcode::WaitGet, 1).expect("it has a reply");
        assert_eq!(scan.advance(&mut &[0, 1][..]), Ok(false));
        scan.cancel();
        let mut rest = &[0, 0, 0, 0, 0, 0, 0, 9, 1][..];
        assert_eq!(scan.advance(&mut rest), Ok(true));
        assert!(rest.is_empty());
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        let mut scan = ReplyScan::new(Opcode::Wait, 1).expect("it has a reply");
        assert!(scan.advance(&mut &[2][..]).is_err());
        let mut scan = ReplyScan::new(Opcode::TryAdd, 0).expect("it has a reply");
        assert!(scan.advance(&mut &[2][..]).is_err());
        assert!(ReplyScan::new(Opcode::Set, 0).is_none());
    }
}
