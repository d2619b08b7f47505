//! Requests and replies as values, between the wire and the state machine.

use std::fmt;

#[cfg(feature = "extensions")]
use crate::session::Hello;
use crate::stored_value::Value;
use crate::wire::{Blobs, Opcode, REFUSAL_NONCE};

/// A connection of the server. The event loop chooses the number, and does not reuse it while a reply
/// to its previous owner can still be queued.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub(crate) u64);

impl ConnId {
    pub(crate) const fn new(slot: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | slot as u64)
    }

    /// A small number that no other open connection has; a closed connection's is used again.
    pub(crate) const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Distinguishes the connections that use one slot after the other.
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.slot(), self.generation())
    }
}

/// Identifies a connection of one server. Never reused within the server's life; later connections compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ConnectionId(pub u64);

/// The reason why a connection closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed the connection in order.
    Peer,
    /// The system reported an error, for example a reset or a timeout.
    Failed,
    /// The server refused a request or the handshake was too late.
    Refused,
}

/// The keys of a request that names several.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a>(KeysRepr<'a>);

#[derive(Clone, Copy)]
enum KeysRepr<'a> {
    /// The keys in the bytes in which they were received, not copied.
    Encoded(Blobs<'a>),
    Listed(&'a [&'a [u8]]),
}

impl<'a> Keys<'a> {
    /// Keys as received.
    pub(crate) fn encoded(blobs: Blobs<'a>) -> Self {
        Self(KeysRepr::Encoded(blobs))
    }

    /// Returns each key in the request's order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        // One of the two is always empty: chains two iterator types without an allocation.
        let (encoded, listed) = match self.0 {
            KeysRepr::Encoded(blobs) => (blobs, &[][..]),
            KeysRepr::Listed(keys) => (Blobs::default(), keys),
        };
        encoded.chain(listed.iter().copied())
    }

    /// The number of keys; of a MULTI_SET, that of keys and values.
    pub(crate) const fn len(&self) -> usize {
        match self.0 {
            KeysRepr::Encoded(blobs) => blobs.left(),
            KeysRepr::Listed(keys) => keys.len(),
        }
    }

    /// The first key.
    fn first(&self) -> Option<&'a [u8]> {
        match self.0 {
            KeysRepr::Encoded(mut blobs) => blobs.next(),
            KeysRepr::Listed(keys) => keys.first().copied(),
        }
    }
}

impl<'a> From<&'a [&'a [u8]]> for Keys<'a> {
    fn from(keys: &'a [&'a [u8]]) -> Self {
        Self(KeysRepr::Listed(keys))
    }
}

impl fmt::Debug for Keys<'_> {
    /// The count only: the pairs of a MULTI_SET contain values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("count", &self.len()).finish()
    }
}

/// The value of a request.
pub(crate) enum Payload<'a> {
    /// Still in the receive buffer.
    Borrowed(&'a [u8]),
    /// A long value in the buffer it was received into, so that storing it copies nothing.
    Owned(Value),
}

impl fmt::Debug for Payload<'_> {
    /// Lengths only: the bytes can be long and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("bytes", &self.as_bytes().len())
            .finish()
    }
}

impl Payload<'_> {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(value) => value.as_bytes(),
        }
    }

    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Borrowed(bytes) => Value::from(bytes),
            Self::Owned(value) => value,
        }
    }
}

/// A request that borrows from the receive buffer.
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Request<'a> {
    Validate {
        magic: u32,
    },
    Set {
        key: &'a [u8],
        value: Payload<'a>,
    },
    CompareSet {
        key: &'a [u8],
        expected: &'a [u8],
        desired: Payload<'a>,
    },
    Get {
        key: &'a [u8],
    },
    Add {
        key: &'a [u8],
        delta: i64,
    },
    Check {
        keys: Keys<'a>,
    },
    Wait {
        keys: Keys<'a>,
    },
    GetNumKeys,
    DeleteKey {
        key: &'a [u8],
    },
    Append {
        key: &'a [u8],
        value: Payload<'a>,
    },
    MultiGet {
        keys: Keys<'a>,
    },
    MultiSet {
        /// Key, value, key, value, ...
        pairs: Keys<'a>,
    },
    CancelWait,
    Ping {
        nonce: u32,
    },
    QueuePush {
        key: &'a [u8],
        value: Payload<'a>,
    },
    QueuePop {
        key: &'a [u8],
    },
    QueueLen {
        key: &'a [u8],
    },
    ListKeys,
    Barrier {
        key: &'a [u8],
        world_size: i64,
    },
    /// A command of docs/spec/wire-extensions.md.
    #[cfg(feature = "extensions")]
    Extension(Extension<'a>),
}

/// A request that PyTorch's servers do not have.
#[cfg(feature = "extensions")]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Extension<'a> {
    /// COMPARE_EXCHANGE, section 9.5.
    CompareExchange {
        key: &'a [u8],
        expected: &'a [u8],
        desired: Payload<'a>,
    },
    /// WAIT_GET, section 9.2.
    WaitGet { keys: Keys<'a> },
    /// TRY_ADD, section 9.4.
    TryAdd { key: &'a [u8], delta: i64 },
    /// WAIT_CHANGE, section 9.3.
    WaitChange {
        key: &'a [u8],
        /// The offset of the known bytes in the value.
        offset: usize,
        /// The known length of the value; `None` matches any length.
        length: Option<usize>,
        known: Payload<'a>,
    },
    /// ANNOUNCE, section 9.7.
    Announce { bytes: Payload<'a> },
    /// QUEUE_TAKE, section 9.8.
    QueueTake {
        key: &'a [u8],
        /// The most elements, at least 1.
        max: usize,
    },
    /// Section 9.9. For the event loop.
    Session(Hello),
    /// SET_EPHEMERAL, section 9.10.
    SetEphemeral {
        key: &'a [u8],
        value: &'a [u8],
        /// Empty for no will.
        will_key: &'a [u8],
        will_value: &'a [u8],
    },
    /// DELETE_PREFIX, section 9.12.
    DeletePrefix {
        /// The prefix, which is not empty.
        prefix: &'a [u8],
        /// 0 for at once.
        delay_millis: u32,
    },
    /// END_WAITS, section 9.11.
    EndWaits { prefix: &'a [u8] },
    /// MEMBERSHIP or MEMBERSHIP_POLL, section 9.13.
    Membership {
        /// The name of the group.
        name: &'a [u8],
        bytes: &'a [u8],
        /// Whether it is MEMBERSHIP_POLL.
        waits: bool,
    },
    /// KEEP_ALIVE, section 9.10.
    KeepAlive {
        /// The longest silence; 0 for any.
        millis: u32,
    },
}

/// The parts of a request that its record keeps, besides the time.
pub(crate) struct Outline<'a> {
    pub(crate) command: Opcode,
    /// The first key.
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) key_count: usize,
    /// The number of an ADD or TRY_ADD, or the world size of a BARRIER, otherwise 0.
    pub(crate) number: i64,
    /// The nonce of a PING, otherwise 0.
    pub(crate) nonce: u32,
}

impl<'a> Outline<'a> {
    const fn of(command: Opcode) -> Self {
        Outline {
            command,
            key: None,
            key_count: 0,
            number: 0,
            nonce: 0,
        }
    }

    const fn with_key(mut self, key: &'a [u8]) -> Self {
        self.key = Some(key);
        self.key_count = 1;
        self
    }

    fn with_keys(mut self, keys: &Keys<'a>, key_count: usize) -> Self {
        self.key = keys.first();
        self.key_count = key_count;
        self
    }

    const fn with_number(mut self, number: i64) -> Self {
        self.number = number;
        self
    }
}

impl<'a> Request<'a> {
    /// Whether it is a write without a reply.
    pub(crate) const fn is_silent_write(&self) -> bool {
        matches!(
            self,
            Self::Set { .. } | Self::Append { .. } | Self::MultiSet { .. } | Self::QueuePush { .. }
        )
    }

    /// Whether it is the PING that follows a write.
    pub(crate) const fn asks_for_refusal(&self) -> bool {
        matches!(
            self,
            Self::Ping {
                nonce: REFUSAL_NONCE
            }
        )
    }

    /// The queue of a QUEUE_POP or QUEUE_TAKE.
    pub(crate) const fn popped_queue(&self) -> Option<&'a [u8]> {
        match self {
            Self::QueuePop { key } => Some(key),
            #[cfg(feature = "extensions")]
            Self::Extension(Extension::QueueTake { key, .. }) => Some(key),
            _ => None,
        }
    }

    /// The request in short.
    #[inline(always)] // Of each request.
    pub(crate) fn outline(&self) -> Outline<'a> {
        let of_none = Outline::of;
        let of_key = |command, key| Outline::of(command).with_key(key);
        let of_number = |command, key, number| of_key(command, key).with_number(number);
        let of_keys = |command, keys: &Keys<'a>, count| Outline::of(command).with_keys(keys, count);
        match self {
            Self::Validate { .. } => of_none(Opcode::Validate),
            Self::Set { key, .. } => of_key(Opcode::Set, key),
            Self::CompareSet { key, .. } => of_key(Opcode::CompareSet, key),
            Self::Get { key } => of_key(Opcode::Get, key),
            Self::Add { key, delta } => of_number(Opcode::Add, key, *delta),
            Self::Check { keys } => of_keys(Opcode::Check, keys, keys.len()),
            Self::Wait { keys } => of_keys(Opcode::Wait, keys, keys.len()),
            Self::GetNumKeys => of_none(Opcode::GetNumKeys),
            Self::DeleteKey { key } => of_key(Opcode::DeleteKey, key),
            Self::Append { key, .. } => of_key(Opcode::Append, key),
            Self::MultiGet { keys } => of_keys(Opcode::MultiGet, keys, keys.len()),
            Self::MultiSet { pairs } => of_keys(Opcode::MultiSet, pairs, pairs.len() / 2),
            Self::CancelWait => of_none(Opcode::CancelWait),
            Self::Ping { nonce } => Outline {
                nonce: *nonce,
                ..of_none(Opcode::Ping)
            },
            Self::QueuePush { key, .. } => of_key(Opcode::QueuePush, key),
            Self::QueuePop { key } => of_key(Opcode::QueuePop, key),
            Self::QueueLen { key } => of_key(Opcode::QueueLen, key),
            Self::ListKeys => of_none(Opcode::ListKeys),
            Self::Barrier { key, world_size } => of_number(Opcode::Barrier, key, *world_size),
            #[cfg(feature = "extensions")]
            Self::Extension(extension) => extension.outline(),
        }
    }
}

#[cfg(feature = "extensions")]
impl<'a> Extension<'a> {
    /// Whether the reply can report that there is no memory.
    pub(crate) const fn can_report(&self) -> bool {
        matches!(
            self,
            Self::CompareExchange { .. }
                | Self::TryAdd { .. }
                | Self::WaitGet { .. }
                | Self::WaitChange { .. }
                | Self::SetEphemeral { .. }
        )
    }

    fn outline(&self) -> Outline<'a> {
        let of_none = Outline::of;
        let of_key = |command, key| Outline::of(command).with_key(key);
        match self {
            Self::CompareExchange { key, .. } => of_key(Opcode::CompareExchange, key),
            Self::WaitGet { keys } => of_none(Opcode::WaitGet).with_keys(keys, keys.len()),
            Self::TryAdd { key, delta } => of_key(Opcode::TryAdd, key).with_number(*delta),
            Self::WaitChange { key, .. } => of_key(Opcode::WaitChange, key),
            Self::Announce { .. } => of_none(Opcode::Announce),
            Self::QueueTake { key, .. } => of_key(Opcode::QueueTake, key),
            Self::Session(_) => of_none(Opcode::Session),
            Self::SetEphemeral { key, .. } => of_key(Opcode::SetEphemeral, key),
            Self::KeepAlive { .. } => of_none(Opcode::KeepAlive),
            Self::DeletePrefix { prefix, .. } => of_key(Opcode::DeletePrefix, prefix),
            Self::EndWaits { prefix } => of_key(Opcode::EndWaits, prefix),
            Self::Membership {
                name, waits: false, ..
            } => of_key(Opcode::Membership, name),
            Self::Membership { name, .. } => of_key(Opcode::MembershipPoll, name),
        }
    }
}

/// A piece of a reply. Some replies have several, for instance a count and its blobs.
#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Reply<'a> {
    /// Reply to PING.
    Nonce(u32),
    /// A number or a count.
    Integer(i64),
    /// CHECK: whether all keys exist.
    Ready(bool),
    /// A wait or a barrier is complete.
    StopWaiting,
    /// A cancel has taken effect.
    WaitCanceled,
    /// COMPARE_EXCHANGE: whether the desired value was written. The reply of COMPARE_SET follows.
    Exchanged(bool),
    /// TRY_ADD: the sum.
    Added(i64),
    /// TRY_ADD: the value is not a number. Its first bytes, and its length in bytes.
    NotANumber { head: &'a [u8], length: usize },
    /// SET_EPHEMERAL: the connection owns the key.
    Owned,
    /// SET_EPHEMERAL: the key has a value that is not the connection's. It follows.
    NotOwned,
    /// SET_EPHEMERAL: the connection owns as many keys as it may.
    TooManyOwned,
    /// KEEP_ALIVE: whether no key of the connection has ended by its silence.
    KeptAlive(bool),
    /// A value; a missing one is encoded as an empty one.
    Value(Option<&'a Value>),
    /// Bytes that are not a stored value: an expected value sent back.
    Bytes(&'a [u8]),
    /// Pieces that are encoded already: the keys of a listing.
    Encoded(&'a Value),
    /// The write before the PING was refused: the bytes that the data takes, and may take.
    Refused { used: usize, limit: usize },
    /// There is no memory for the request: the bytes that the data takes, and may take.
    Full { used: usize, limit: usize },
}

/// The destination of the state machine's replies.
pub(crate) trait Replies {
    /// Queues a piece of a reply to `conn`, which may be a different connection from the request's. The order of
    /// pieces to one connection is kept.
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>);

    /// For a store with a journal: the pieces from now on are held until the batch with this position is durable. 0
    /// for pieces that depend on no batch.
    fn depend_on(&mut self, _position: u64) {}
}
