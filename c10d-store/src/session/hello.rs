//! How a session begins, and how it continues over another link.

use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};

use super::id::{ID_BYTES, SessionId, StoreId};
use crate::wire::HELLO_BYTES;

/// The argument of SESSION.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) session: SessionId,
    /// The server that it was connected to; [`StoreId::ANY`] if it never was.
    pub(crate) store: StoreId,
    /// Ascending: an older attempt that arrives late must not replace a newer attempt.
    pub(crate) attempt: u64,
    /// How many bytes of the stream it has received.
    pub(crate) received: u64,
    /// How long the server should remember the session without a link.
    pub(crate) keep: Duration,
    /// Whether the peer can send requests again to a server that was restarted (docs/spec/wire-extensions.md, SESSION
    /// 12).
    pub(crate) carries_over: bool,
    /// Whether the peer takes pieces (docs/spec/wire-extensions.md, SESSION 16).
    pub(crate) takes_pieces: bool,
    /// Whether the peer detects by the lack of heartbeats that the server does not answer
    /// (docs/spec/wire-extensions.md, SESSION 18).
    pub(crate) wants_heartbeats: bool,
    /// Whether the peer takes POSITION (docs/spec/wire-extensions.md, SESSION 19).
    pub(crate) takes_positions: bool,
    /// Whether the peer passes on the replies of REFUSAL (docs/spec/wire-extensions.md, REFUSAL 6).
    pub(crate) knows_refusal: bool,
}

/// The reply to SESSION.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Welcome {
    /// The session is accepted. From here on, both sides send link frames.
    Accepted {
        store: StoreId,
        /// How many bytes of the stream the server has received.
        received: u64,
    },
    /// The server has no such session, or is a different store, with this id; `begins` as below.
    Unknown { store: StoreId, begins: u64 },
    /// The server has as many sessions as it may have.
    Full { store: StoreId },
    /// The server was restarted and has the session: both sides send link frames of new streams.
    Restarted {
        store: StoreId,
        /// The position of the journal at which this run began, plus 1; 0 if the server does not send it.
        begins: u64,
    },
}

const ACCEPTED: u8 = 0;
const UNKNOWN: u8 = 1;
const FULL: u8 = 2;
const RESTARTED: u8 = 3;

/// Bit 31 of the milliseconds field: the peer resends requests after a server restart.
const CARRIES_OVER: u32 = 1 << 31;
/// Bit 30 of the milliseconds field: the peer takes pieces.
const TAKES_PIECES: u32 = 1 << 30;
/// Bit 29 of the milliseconds field: the peer requests heartbeats.
const WANTS_HEARTBEATS: u32 = 1 << 29;
/// Bit 28 of the milliseconds field: the peer takes positions.
const TAKES_POSITIONS: u32 = 1 << 28;
/// Bit 27 of the milliseconds field: the peer supports REFUSAL.
const KNOWS_REFUSAL: u32 = 1 << 27;

impl Hello {
    /// The length of the encoded form: two ids, two u64, and milliseconds as u32.
    pub(crate) const BYTES: usize = HELLO_BYTES;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.session.0);
        bytes[16..32].copy_from_slice(&self.store.0);
        LittleEndian::write_u64(&mut bytes[32..40], self.attempt);
        LittleEndian::write_u64(&mut bytes[40..48], self.received);
        let millis = u32::try_from(self.keep.as_millis()).unwrap_or(u32::MAX);
        let mut word = millis.min(KNOWS_REFUSAL - 1);
        for (is_set, flag) in [
            (self.carries_over, CARRIES_OVER),
            (self.takes_pieces, TAKES_PIECES),
            (self.wants_heartbeats, WANTS_HEARTBEATS),
            (self.takes_positions, TAKES_POSITIONS),
            (self.knows_refusal, KNOWS_REFUSAL),
        ] {
            word |= if is_set { flag } else { 0 };
        }
        LittleEndian::write_u32(&mut bytes[48..], word);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let word = LittleEndian::read_u32(&bytes[48..]);
        let millis = word & (KNOWS_REFUSAL - 1);
        Self {
            session: SessionId(id_of(&bytes[..16])),
            store: StoreId(id_of(&bytes[16..32])),
            attempt: LittleEndian::read_u64(&bytes[32..40]),
            received: LittleEndian::read_u64(&bytes[40..48]),
            keep: Duration::from_millis(u64::from(millis)),
            carries_over: word & CARRIES_OVER != 0,
            takes_pieces: word & TAKES_PIECES != 0,
            wants_heartbeats: word & WANTS_HEARTBEATS != 0,
            takes_positions: word & TAKES_POSITIONS != 0,
            knows_refusal: word & KNOWS_REFUSAL != 0,
        }
    }
}

impl Welcome {
    /// The server that answers.
    pub(crate) const fn store(&self) -> StoreId {
        match self {
            Self::Accepted { store, .. }
            | Self::Unknown { store, .. }
            | Self::Full { store }
            | Self::Restarted { store, .. } => *store,
        }
    }

    /// The position at which this run of the store began, if the server sends it.
    pub(crate) fn begins(&self) -> Option<u64> {
        match self {
            Self::Unknown { begins, .. } | Self::Restarted { begins, .. } => begins.checked_sub(1),
            Self::Accepted { .. } | Self::Full { .. } => None,
        }
    }

    /// The length of the encoded form: a status, an id and a u64.
    pub(crate) const BYTES: usize = 1 + ID_BYTES + 8;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let (status, store, received) = match self {
            Self::Accepted { store, received } => (ACCEPTED, store, *received),
            Self::Unknown { store, begins } => (UNKNOWN, store, *begins),
            Self::Full { store } => (FULL, store, 0),
            Self::Restarted { store, begins } => (RESTARTED, store, *begins),
        };
        let mut bytes = [status; Self::BYTES];
        bytes[1..17].copy_from_slice(&store.0);
        LittleEndian::write_u64(&mut bytes[17..], received);
        bytes
    }

    /// `None` if the status is not a refusal.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let store = StoreId(id_of(&bytes[1..17]));
        let number = LittleEndian::read_u64(&bytes[17..]);
        Some(match bytes[0] {
            ACCEPTED => Self::Accepted {
                store,
                received: number,
            },
            UNKNOWN => Self::Unknown {
                store,
                begins: number,
            },
            FULL => Self::Full { store },
            RESTARTED => Self::Restarted {
                store,
                begins: number,
            },
            _ => return None,
        })
    }
}

fn id_of(bytes: &[u8]) -> [u8; ID_BYTES] {
    let mut id = [0; ID_BYTES];
    id.copy_from_slice(bytes);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let hello = Hello {
            session: SessionId::random(),
            store: StoreId::random(),
            attempt: 3,
            received: 1 << 40,
            keep: Duration::from_millis(600_000),
            carries_over: false,
            takes_pieces: true,
            wants_heartbeats: false,
            takes_positions: false,
            knows_refusal: false,
        };
        assert_eq!(Hello::decode(&hello.encode()), hello);
        let carries_over = Hello {
            carries_over: true,
            wants_heartbeats: true,
            takes_positions: true,
            knows_refusal: true,
            ..hello
        };
        assert_eq!(Hello::decode(&carries_over.encode()), carries_over);
        let store = StoreId::random();
        let received = 7;
        for welcome in [
            Welcome::Accepted { store, received },
            Welcome::Unknown { store, begins: 0 },
            Welcome::Full { store },
            Welcome::Restarted { store, begins: 8 },
        ] {
            assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        }
        assert_eq!(Welcome::decode(&[9; Welcome::BYTES]), None);
    }
}
