//! Requests and replies as plain values: what the wire carries and the state machine speaks.

use std::fmt;

use crate::stored_value::Value;
use crate::wire::Blobs;

/// One peer of the server. The number is chosen by the shell and never reused while a reply to the
/// old bearer can still be under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnId(pub(crate) u64);

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.0 & 0xffff_ffff, self.0 >> 32)
    }
}

/// The keys of a request that names several.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a>(KeysRepr<'a>);

#[derive(Clone, Copy)]
enum KeysRepr<'a> {
    /// As they came over the wire, not copied.
    Encoded(Blobs<'a>),
    Listed(&'a [&'a [u8]]),
}

impl<'a> Keys<'a> {
    /// Keys that came over the wire.
    pub(crate) fn encoded(blobs: Blobs<'a>) -> Self {
        Self(KeysRepr::Encoded(blobs))
    }

    /// Each key in the request's order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        // One of the two is always empty: two iterator types without an allocation.
        let (encoded, listed) = match self.0 {
            KeysRepr::Encoded(blobs) => (blobs, &[][..]),
            KeysRepr::Listed(keys) => (Blobs::default(), keys),
        };
        encoded.chain(listed.iter().copied())
    }
}

impl<'a> From<&'a [&'a [u8]]> for Keys<'a> {
    fn from(keys: &'a [&'a [u8]]) -> Self {
        Self(KeysRepr::Listed(keys))
    }
}

impl fmt::Debug for Keys<'_> {
    /// How many: the pairs of a MULTI_SET hold values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("count", &self.iter().count())
            .finish()
    }
}

/// A value that a request brings.
pub(crate) enum Payload<'a> {
    /// Still in the receive buffer.
    Borrowed(&'a [u8]),
    /// A long one, in the buffer it was received into: storing it copies nothing.
    Owned(Value),
}

impl fmt::Debug for Payload<'_> {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("bytes", &self.as_bytes().len())
            .finish()
    }
}

impl Payload<'_> {
    /// The bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(value) => value.as_bytes(),
        }
    }

    /// The bytes as a value of its own.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Borrowed(bytes) => Value::from(bytes),
            Self::Owned(value) => value,
        }
    }
}

/// One request, its bytes borrowed from the receive buffer.
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
        /// Whether the answer says if `desired` was written. Extension (COMPARE_EXCHANGE).
        tells_outcome: bool,
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
    /// Extension: docs/wire.md, section 9.
    WaitGet {
        keys: Keys<'a>,
    },
    /// Extension, too.
    TryAdd {
        key: &'a [u8],
        delta: i64,
    },
    /// Extension, too.
    WaitChange {
        key: &'a [u8],
        /// Where in the value the known bytes stand.
        offset: usize,
        /// How long the value is known to be, if that matters.
        length: Option<usize>,
        known: Payload<'a>,
    },
}

/// One piece of a reply. Some replies have several, in order: a count and its blobs, say.
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Reply<'a> {
    /// PING's answer.
    Nonce(u32),
    /// A number or a count.
    Integer(i64),
    /// CHECK: whether all keys are there.
    Ready(bool),
    /// A wait or a barrier is over.
    StopWaiting,
    /// A cancel has taken effect.
    WaitCanceled,
    /// COMPARE_EXCHANGE: whether the desired value was written. The answer of COMPARE_SET follows.
    Exchanged(bool),
    /// TRY_ADD: the sum.
    Added(i64),
    /// TRY_ADD: the present value is not a number. How it starts, and how long it is in bytes.
    NotANumber { head: &'a [u8], length: usize },
    /// A value; one that is missing is an empty one on this wire.
    Value(Option<&'a Value>),
    /// Bytes that are not a stored value: a key in a listing, a value handed back.
    Bytes(&'a [u8]),
}

/// Where the state machine puts its replies.
pub(crate) trait Replies {
    /// Hands over one piece of a reply to `conn`, which may be another connection than the one
    /// whose request is being handled. Pieces to one connection leave in the order given.
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>);
}
