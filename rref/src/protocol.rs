//! The messages about references, as bytes of a request or an answer of `rpc-agent`.
//!
//! Integers are little-endian. A message begins with a version, a kind and the sender's incarnation; its fields
//! follow, and no byte may follow them. An id is worker (16 bits), incarnation (64) and local id (64); a text has
//! its length in front (32 bits). Lengths are checked against the field's limit, and against the bytes received,
//! before memory is reserved.
//!
//! This module does not encode values and arguments. The names follow PyTorch's
//! `torch/csrc/distributed/rpc/rref_proto.h`; the bytes do not.

use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian, WriteBytesExt};
use bytes::Bytes;
use rpc_agent::{FUNCTION_NAME_BYTES_MAX, WorkerId};

use crate::id::shared_name;
use crate::id::{ForkId, GloballyUniqueId, RRefId};

/// The first byte of every message.
const VERSION: u8 = 1;

/// The agent functions that serve references.
pub(crate) const CREATE: &str = "rref/create";
pub(crate) const CONTROL: &str = "rref/control";
pub(crate) const CONTROLS: &str = "rref/controls";
pub(crate) const FETCH: &str = "rref/fetch";
pub(crate) const AWAIT: &str = "rref/await";
pub(crate) const READY: &str = "rref/ready";
pub(crate) const CALL: &str = "rref/call";
pub(crate) const RUN: &str = "rref/run";
pub(crate) const ALIVE: &str = "rref/alive";

/// The longest type name, in bytes. A longer one is cut.
pub(crate) const TYPE_NAME_BYTES_MAX: usize = 1024;

/// The longest error text, in bytes. A longer one is cut.
pub(crate) const ERROR_BYTES_MAX: usize = 64 << 10;

/// The most deletions in one message.
pub const DELETES_MAX: usize = 128;

/// The most control messages in one call.
pub(crate) const CONTROLS_MAX: usize = 4096;

const ID_BYTES: usize = 2 + 8 + 8;

/// A reference inside another message: PyTorch's seven values and the incarnations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForkData {
    /// The worker that has the value.
    pub owner: WorkerId,
    /// The incarnation of the owner's process; 0 if the sender does not have it.
    pub owner_incarnation: u64,
    /// The id of the reference.
    pub rref: RRefId,
    /// The receiver's user, whose id the sender has chosen.
    pub fork: ForkId,
    /// The worker that sent the reference.
    pub parent: WorkerId,
    /// The name of the value's type, as given by the reference's creator.
    pub type_name: Arc<str>,
}

impl ForkData {
    /// Appends the fork data to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        put_worker(bytes, self.owner);
        put_u64(bytes, self.owner_incarnation);
        put_id(bytes, self.rref.0);
        put_id(bytes, self.fork.0);
        put_worker(bytes, self.parent);
        put_text(bytes, &self.type_name, TYPE_NAME_BYTES_MAX);
    }

    /// Takes fork data from the front of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]; `bytes` are unspecified after an error.
    pub fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            owner: take_worker(bytes)?,
            owner_incarnation: LittleEndian::read_u64(take(bytes, 8, "incarnation")?),
            rref: RRefId(take_id(bytes)?),
            fork: ForkId(take_id(bytes)?),
            parent: take_worker(bytes)?,
            type_name: shared_name(take_text(bytes, "type name", TYPE_NAME_BYTES_MAX)?),
        })
    }
}

/// A request about a reference.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// A request to the owner: create a value by running a function. The answer confirms that the reference is
    /// registered.
    RemoteCall {
        /// The reference, named by the sender.
        rref: RRefId,
        /// The sender's user.
        fork: ForkId,
        /// The type of the function's result.
        type_name: Arc<str>,
        /// The registered name of what runs at the owner.
        function: Arc<str>,
        /// The packed arguments.
        arguments: Bytes,
    },
    /// A request to the owner: send a copy of the value.
    Fetch {
        /// The id of the reference.
        rref: RRefId,
    },
    /// A request to the owner: run a function on the value.
    Call {
        /// The id of the reference.
        rref: RRefId,
        /// The registered name of what runs at the owner.
        function: Arc<str>,
        /// The packed arguments.
        arguments: Bytes,
    },
    /// A request to the owner: register the sender's user, which the sender received from another user.
    ForkRequest {
        /// The id of the reference.
        rref: RRefId,
        /// The sender's user.
        fork: ForkId,
    },
    /// A request to the parent: the owner has the child, or is its receiver, so the parent may be deleted.
    ChildAccept {
        /// The id of the child.
        fork: ForkId,
    },
    /// A request to the owner: these users were deleted. At most [`DELETES_MAX`].
    UserDelete {
        /// References and users.
        forks: Vec<(RRefId, ForkId)>,
    },
    /// A request to the owner: the creation was abandoned. If it has not arrived by now, it fails for all workers.
    Abandon {
        /// The id of the reference.
        rref: RRefId,
        /// The creator's user.
        fork: ForkId,
        /// The reason why it was abandoned.
        error: Arc<str>,
    },
    /// A request to a reference's receiver: has the reference arrived? If not, it is refused from now on.
    Probe {
        /// The id of the reference.
        rref: RRefId,
        /// The user that it makes.
        fork: ForkId,
    },
    /// A request to the owner: is this user known?
    Query {
        /// The id of the reference.
        rref: RRefId,
        /// The id of the user.
        fork: ForkId,
    },
}

impl std::fmt::Debug for Message {
    /// Prints lengths instead of arguments, which can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RemoteCall {
                rref,
                fork,
                type_name,
                function,
                arguments,
            } => f
                .debug_struct("RemoteCall")
                .field("rref", rref)
                .field("fork", fork)
                .field("type_name", type_name)
                .field("function", function)
                .field("arguments_bytes", &arguments.len())
                .finish(),
            Self::Fetch { rref } => f.debug_struct("Fetch").field("rref", rref).finish(),
            Self::Call {
                rref,
                function,
                arguments,
            } => f
                .debug_struct("Call")
                .field("rref", rref)
                .field("function", function)
                .field("arguments_bytes", &arguments.len())
                .finish(),
            Self::ForkRequest { rref, fork } => f
                .debug_struct("ForkRequest")
                .field("rref", rref)
                .field("fork", fork)
                .finish(),
            Self::ChildAccept { fork } => {
                f.debug_struct("ChildAccept").field("fork", fork).finish()
            }
            Self::UserDelete { forks } => {
                f.debug_struct("UserDelete").field("forks", forks).finish()
            }
            Self::Abandon { rref, fork, error } => f
                .debug_struct("Abandon")
                .field("rref", rref)
                .field("fork", fork)
                .field("error", error)
                .finish(),
            Self::Probe { rref, fork } => f
                .debug_struct("Probe")
                .field("rref", rref)
                .field("fork", fork)
                .finish(),
            Self::Query { rref, fork } => f
                .debug_struct("Query")
                .field("rref", rref)
                .field("fork", fork)
                .finish(),
        }
    }
}

impl Message {
    /// Encodes the message; `incarnation` is the sender's. Deletions and texts are cut to their limits.
    #[must_use]
    pub fn encode(&self, incarnation: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.variable_bytes());
        let out = &mut bytes;
        let (kind, rref, fork) = match self {
            Self::RemoteCall { rref, fork, .. } => (0, Some(rref), Some(fork)),
            Self::Fetch { rref } => (1, Some(rref), None),
            Self::Call { rref, .. } => (2, Some(rref), None),
            Self::ForkRequest { rref, fork } => (3, Some(rref), Some(fork)),
            Self::ChildAccept { fork } => (4, None, Some(fork)),
            Self::UserDelete { .. } => (5, None, None),
            Self::Abandon { rref, fork, .. } => (6, Some(rref), Some(fork)),
            Self::Probe { rref, fork } => (7, Some(rref), Some(fork)),
            Self::Query { rref, fork } => (8, Some(rref), Some(fork)),
        };
        put_header(out, kind, incarnation);
        for id in rref
            .map(|rref| rref.0)
            .into_iter()
            .chain(fork.map(|fork| fork.0))
        {
            put_id(out, id);
        }
        if let Self::RemoteCall { type_name, .. } = self {
            put_text(out, type_name, TYPE_NAME_BYTES_MAX);
        }
        match self {
            Self::RemoteCall {
                function,
                arguments,
                ..
            }
            | Self::Call {
                function,
                arguments,
                ..
            } => {
                put_text(out, function, FUNCTION_NAME_BYTES_MAX);
                out.extend_from_slice(arguments);
            }
            Self::UserDelete { forks } => {
                for (rref, fork) in forks.iter().take(DELETES_MAX) {
                    put_id(out, rref.0);
                    put_id(out, fork.0);
                }
            }
            Self::Abandon { error, .. } => put_text(out, error, ERROR_BYTES_MAX),
            _ => {}
        }
        bytes
    }

    /// The size in bytes of the parts that have no fixed one.
    fn variable_bytes(&self) -> usize {
        match self {
            Self::RemoteCall {
                type_name,
                function,
                arguments,
                ..
            } => type_name.len() + function.len() + arguments.len(),
            Self::Call {
                function,
                arguments,
                ..
            } => function.len() + arguments.len(),
            _ => 0,
        }
    }

    /// Decodes the sender's incarnation and the message.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a message.
    pub fn decode(whole: &Bytes) -> Result<(u64, Self), DecodeError> {
        let mut rest: &[u8] = whole;
        let bytes = &mut rest;
        let (kind, incarnation) = take_header(bytes)?;
        let message = match kind {
            0 => Self::RemoteCall {
                rref: RRefId(take_id(bytes)?),
                fork: ForkId(take_id(bytes)?),
                type_name: shared_name(take_text(bytes, "type name", TYPE_NAME_BYTES_MAX)?),
                function: take_text(bytes, "function name", FUNCTION_NAME_BYTES_MAX)?.into(),
                arguments: take_rest(whole, bytes),
            },
            1 => Self::Fetch {
                rref: RRefId(take_id(bytes)?),
            },
            2 => Self::Call {
                rref: RRefId(take_id(bytes)?),
                function: take_text(bytes, "function name", FUNCTION_NAME_BYTES_MAX)?.into(),
                arguments: take_rest(whole, bytes),
            },
            3 => Self::ForkRequest {
                rref: RRefId(take_id(bytes)?),
                fork: ForkId(take_id(bytes)?),
            },
            4 => Self::ChildAccept {
                fork: ForkId(take_id(bytes)?),
            },
            5 => {
                let count = bytes.len() / (2 * ID_BYTES);
                if count > DELETES_MAX {
                    return Err(DecodeError::TooLong {
                        what: "list of deletions",
                        len: count,
                        max: DELETES_MAX,
                    });
                }
                let mut forks = Vec::with_capacity(count);
                while !bytes.is_empty() {
                    forks.push((RRefId(take_id(bytes)?), ForkId(take_id(bytes)?)));
                }
                Self::UserDelete { forks }
            }
            6 => Self::Abandon {
                rref: RRefId(take_id(bytes)?),
                fork: ForkId(take_id(bytes)?),
                error: take_text(bytes, "error", ERROR_BYTES_MAX)?.into(),
            },
            7 => Self::Probe {
                rref: RRefId(take_id(bytes)?),
                fork: ForkId(take_id(bytes)?),
            },
            8 => Self::Query {
                rref: RRefId(take_id(bytes)?),
                fork: ForkId(take_id(bytes)?),
            },
            kind => return Err(DecodeError::Kind { kind }),
        };
        end(bytes)?;
        Ok((incarnation, message))
    }
}

/// The answer to a [`Message`] that does not request a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Done, now or before.
    Ack,
    /// The answer to [`Message::RemoteCall`]: the reference and its first user are registered.
    RemoteAccept,
    /// The answer to [`Message::Abandon`]: the creation had arrived.
    Created,
    /// The answer to [`Message::Abandon`]: the creation had not arrived, and has no effect from now on.
    Abandoned,
    /// The answer to [`Message::Probe`]: the reference has arrived.
    Received,
    /// The answer to [`Message::Probe`]: the reference has not arrived, and is refused from now on.
    NotReceived,
    /// The answer to [`Message::Query`]: a registered user.
    Known,
    /// The answer to [`Message::Query`]: a deleted user.
    Deleted,
    /// The answer to [`Message::Query`]: an unknown user, or a user that was deleted long ago.
    Unknown,
    /// The message had no effect, and retrying is useless.
    Refused(Arc<str>),
}

impl Answer {
    /// Encodes the answer; `incarnation` is the answering process's.
    #[must_use]
    pub fn encode(&self, incarnation: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(10);
        let kind = match self {
            Self::Ack => 0,
            Self::RemoteAccept => 1,
            Self::Created => 2,
            Self::Abandoned => 3,
            Self::Received => 4,
            Self::NotReceived => 5,
            Self::Known => 6,
            Self::Deleted => 7,
            Self::Unknown => 8,
            Self::Refused(_) => 9,
        };
        put_header(&mut bytes, kind, incarnation);
        if let Self::Refused(reason) = self {
            put_text(&mut bytes, reason, ERROR_BYTES_MAX);
        }
        bytes
    }

    /// Decodes the incarnation of the answering process, and the answer.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not an answer.
    pub fn decode(mut bytes: &[u8]) -> Result<(u64, Self), DecodeError> {
        let (kind, incarnation) = take_header(&mut bytes)?;
        let answer = match kind {
            0 => Self::Ack,
            1 => Self::RemoteAccept,
            2 => Self::Created,
            3 => Self::Abandoned,
            4 => Self::Received,
            5 => Self::NotReceived,
            6 => Self::Known,
            7 => Self::Deleted,
            8 => Self::Unknown,
            9 => Self::Refused(take_text(&mut bytes, "error", ERROR_BYTES_MAX)?.into()),
            kind => return Err(DecodeError::Kind { kind }),
        };
        end(bytes)?;
        Ok((incarnation, answer))
    }
}

/// The error of bytes that are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end within a field.
    #[error("the message ends within its {what}")]
    Truncated {
        /// The name of the field.
        what: &'static str,
    },
    /// Bytes follow the message.
    #[error("{bytes} bytes follow the end of the message")]
    Trailing {
        /// The number of further bytes.
        bytes: usize,
    },
    /// Another version of the protocol.
    #[error("version {version} of the reference protocol is not known here")]
    Version {
        /// The first byte of the message.
        version: u8,
    },
    /// An unknown kind.
    #[error("a message of kind {kind} is not known here")]
    Kind {
        /// The second byte of the message.
        kind: u8,
    },
    /// A worker id out of range.
    #[error("{worker} is no worker id")]
    Worker {
        /// The number that is not a worker's id.
        worker: u16,
    },
    /// A field exceeds its limit.
    #[error("the {what} has the length {len}, the limit is {max}")]
    TooLong {
        /// The name of the field.
        what: &'static str,
        /// The length of the field, in bytes or elements.
        len: usize,
        /// The limit of the field.
        max: usize,
    },
    /// A text is not UTF-8.
    #[error("the {what} is not UTF-8")]
    Text {
        /// The name of the field.
        what: &'static str,
    },
}

/// Appends the head of a [`RUN`] request: the function's name, behind its length in one byte.
pub(crate) fn join_name(function: &str, bytes: &mut Vec<u8>) -> Result<(), String> {
    let len = u8::try_from(function.len()).map_err(|_| {
        format!(
            "a function name has at most 255 bytes, this one has {}",
            function.len()
        )
    })?;
    bytes.push(len);
    bytes.extend_from_slice(function.as_bytes());
    Ok(())
}

/// Splits a [`RUN`] request into the function's name and its arguments.
pub(crate) fn split_name(payload: &Bytes) -> Option<(String, Bytes)> {
    let (&len, rest) = payload.split_first()?;
    let (name, _) = rest.split_at_checked(usize::from(len))?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    Some((name, payload.slice(1 + usize::from(len)..)))
}

/// The longest prefix of `text` that has at most `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Several messages, or their answers, as one: each with its length in front.
pub(crate) fn join(parts: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        put_len(&mut bytes, part.len());
        bytes.extend_from_slice(&part);
    }
    bytes
}

/// What [`join`] has joined.
pub(crate) fn split(whole: &Bytes) -> Result<Vec<Bytes>, DecodeError> {
    let mut rest: &[u8] = whole;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        if parts.len() == CONTROLS_MAX {
            return Err(DecodeError::TooLong {
                what: "list of messages",
                len: parts.len() + 1,
                max: CONTROLS_MAX,
            });
        }
        let len = LittleEndian::read_u32(take(&mut rest, 4, "message")?) as usize;
        parts.push(whole.slice_ref(take(&mut rest, len, "message")?));
    }
    Ok(parts)
}

fn put_header(bytes: &mut Vec<u8>, kind: u8, incarnation: u64) {
    bytes.extend_from_slice(&[VERSION, kind]);
    put_u64(bytes, incarnation);
}

fn put_u64(bytes: &mut Vec<u8>, value: u64) {
    bytes
        .write_u64::<LittleEndian>(value)
        .expect("writing to memory does not fail");
}

fn put_worker(bytes: &mut Vec<u8>, worker: WorkerId) {
    let id = u16::try_from(worker.get()).expect("worker ids have 15 bits");
    bytes
        .write_u16::<LittleEndian>(id)
        .expect("writing to memory does not fail");
}

fn put_id(bytes: &mut Vec<u8>, id: GloballyUniqueId) {
    put_worker(bytes, id.created_on);
    put_u64(bytes, id.incarnation);
    put_u64(bytes, id.local_id);
}

fn put_text(bytes: &mut Vec<u8>, text: &str, max: usize) {
    let text = cut(text, max);
    put_len(bytes, text.len());
    bytes.extend_from_slice(text.as_bytes());
}

fn put_len(bytes: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).expect("the limits of texts and of control messages have 32 bits");
    bytes
        .write_u32::<LittleEndian>(len)
        .expect("writing to memory does not fail");
}

fn take<'a>(bytes: &mut &'a [u8], len: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
    let (taken, rest) = bytes
        .split_at_checked(len)
        .ok_or(DecodeError::Truncated { what })?;
    *bytes = rest;
    Ok(taken)
}

fn take_header(bytes: &mut &[u8]) -> Result<(u8, u64), DecodeError> {
    let version = take(bytes, 1, "version")?[0];
    if version != VERSION {
        return Err(DecodeError::Version { version });
    }
    let kind = take(bytes, 1, "kind")?[0];
    let incarnation = LittleEndian::read_u64(take(bytes, 8, "incarnation")?);
    Ok((kind, incarnation))
}

fn take_worker(bytes: &mut &[u8]) -> Result<WorkerId, DecodeError> {
    let worker = LittleEndian::read_u16(take(bytes, 2, "worker id")?);
    WorkerId::new(worker.into()).map_err(|_| DecodeError::Worker { worker })
}

fn take_id(bytes: &mut &[u8]) -> Result<GloballyUniqueId, DecodeError> {
    Ok(GloballyUniqueId {
        created_on: take_worker(bytes)?,
        incarnation: LittleEndian::read_u64(take(bytes, 8, "id")?),
        local_id: LittleEndian::read_u64(take(bytes, 8, "id")?),
    })
}

fn take_text<'a>(
    bytes: &mut &'a [u8],
    what: &'static str,
    max: usize,
) -> Result<&'a str, DecodeError> {
    let len = LittleEndian::read_u32(take(bytes, 4, what)?) as usize;
    if len > max {
        return Err(DecodeError::TooLong { what, len, max });
    }
    let text = take(bytes, len, what)?;
    std::str::from_utf8(text).map_err(|_| DecodeError::Text { what })
}

fn take_rest(whole: &Bytes, bytes: &mut &[u8]) -> Bytes {
    let rest = whole.slice(whole.len() - bytes.len()..);
    *bytes = &[];
    rest
}

fn end(rest: &[u8]) -> Result<(), DecodeError> {
    match rest.len() {
        0 => Ok(()),
        bytes => Err(DecodeError::Trailing { bytes }),
    }
}

#[cfg(test)]
mod tests;
