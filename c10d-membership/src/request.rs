//! The values of MEMBERSHIP and MEMBERSHIP_POLL, and of their replies: docs/spec/wire-extensions.md, section 9.13.

use crate::codec::{Encode, Malformed, decode_all, decode_reply, encode_reply};
use crate::group::GroupStatus;
use crate::message::{Message, Reply};
use crate::options::GroupOptions;
use crate::record::{Attempt, MemberKey, Record};
use std::sync::Arc;
use std::time::Duration;

/// The list of no attempt.
const NO_LIST: u64 = u64::MAX;

/// The offset of the message in `SAY`: after the member and the list.
const SAID_AT: usize = 2 * 8 + 8;

mod kind {
    pub(super) const OPEN: u8 = 1;
    pub(super) const DEAD: u8 = 3;
    pub(super) const END: u8 = 4;
    pub(super) const STATUS: u8 = 5;
    pub(super) const KEEP_ALIVE: u8 = 6;
    pub(super) const SAY: u8 = 8;

    pub(super) const NOT_OPEN: u8 = 1;
    pub(super) const DONE: u8 = 2;
    pub(super) const REPLY: u8 = 3;
    pub(super) const STATUS_OF: u8 = 4;
    pub(super) const OPEN_OTHERWISE: u8 = 5;
    pub(super) const TOO_MANY: u8 = 6;
    pub(super) const WAS_SILENT: u8 = 7;
}

/// A request to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupRequest {
    /// Opens the group, unless it is open already.
    Open(Opening),
    /// A member's message.
    Say {
        member: MemberKey,
        /// The attempt of the newest list that the peer has.
        known: Option<Attempt>,
        message: Message,
    },
    /// The process of this member has exited.
    Dead(MemberKey),
    /// Ends the group for all its members.
    End,
    /// Requests the status of the group.
    Status,
    /// The longest silence of the connection, in milliseconds; 0 for any.
    KeepAlive(u32),
}

/// The arguments of a request that opens a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) options: GroupOptions,
    /// Torch's keys of an attempt begin with this, then the uuid and a `/`.
    pub(crate) key_prefix: Box<[u8]>,
}

/// The answer to a [`GroupRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupReply {
    /// There is no such group.
    NotOpen,
    /// The answer to all requests except `Say` and `Status`.
    Done,
    /// The answer to `KeepAlive`: members have left because the connection was silent.
    WasSilent,
    /// The answer to `Say`.
    Reply(Reply),
    /// The answer to `Status`.
    Status(GroupStatus),
    /// The answer to `Open`: the group exists, and was opened with this.
    OpenOtherwise(Opening),
    /// The answer to `Open`: the server has as many groups as it may have.
    TooMany,
}

impl GroupRequest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Open(opening) => {
                out.push(kind::OPEN);
                opening.encode(&mut out);
            }
            Self::Say {
                member,
                known,
                message,
            } => {
                out.push(kind::SAY);
                member.encode(&mut out);
                match known {
                    Some(attempt) => attempt.encode(&mut out),
                    None => out.extend([0xff; size_of_val(&NO_LIST)]),
                }
                message.encode(&mut out);
            }
            Self::Dead(member) => {
                out.push(kind::DEAD);
                member.encode(&mut out);
            }
            Self::End => out.push(kind::END),
            Self::Status => out.push(kind::STATUS),
            Self::KeepAlive(millis) => {
                out.push(kind::KEEP_ALIVE);
                millis.encode(&mut out);
            }
        }
        out
    }

    /// Whether the bytes may be a request that adds a group or a member.
    pub(crate) fn may_add(bytes: &[u8]) -> bool {
        match bytes.split_first() {
            Some((&kind::OPEN, _)) => true,
            Some((&kind::SAY, said)) => said.get(SAID_AT) == Some(&Message::HELLO_BYTE),
            _ => false,
        }
    }

    /// Whether the bytes may be a request to keep members alive.
    pub(crate) fn is_keep_alive(bytes: &[u8]) -> bool {
        bytes.first() == Some(&kind::KEEP_ALIVE)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (&kind, mut rest) = bytes.split_first().ok_or(Malformed)?;
        if kind == kind::SAY {
            let member = MemberKey::decode(&mut rest)?;
            let (list, rest) = rest
                .split_at_checked(size_of_val(&NO_LIST))
                .ok_or(Malformed)?;
            let known = match list {
                [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => None,
                _ => Some(decode_all(list)?),
            };
            return Ok(Self::Say {
                member,
                known,
                message: decode_all(rest)?,
            });
        }
        Ok(match (kind, rest) {
            (kind::OPEN, _) => Self::Open(Opening::decode(rest)?),
            (kind::DEAD, _) => Self::Dead(decode_all(rest)?),
            (kind::END, []) => Self::End,
            (kind::STATUS, []) => Self::Status,
            (kind::KEEP_ALIVE, _) => Self::KeepAlive(decode_all(rest)?),
            _ => return Err(Malformed),
        })
    }
}

impl Opening {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.options.encode(out);
        out.extend_from_slice(&self.key_prefix);
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Self, Malformed> {
        let options = GroupOptions::decode(&mut bytes)?;
        let key_prefix = bytes.into();
        Ok(Self {
            options,
            key_prefix,
        })
    }
}

impl GroupReply {
    /// `now` is the current time of the group. The list of a reply is sent separately.
    pub(crate) fn encode(&self, now: Duration) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        match self {
            Self::NotOpen => out.push(kind::NOT_OPEN),
            Self::Done => out.push(kind::DONE),
            Self::Reply(reply) => {
                out.push(kind::REPLY);
                encode_reply(reply, now, &mut out);
            }
            Self::Status(status) => {
                out.push(kind::STATUS_OF);
                status.encode(&mut out);
            }
            Self::OpenOtherwise(opening) => {
                out.push(kind::OPEN_OTHERWISE);
                opening.encode(&mut out);
            }
            Self::TooMany => out.push(kind::TOO_MANY),
            Self::WasSilent => out.push(kind::WAS_SILENT),
        }
        out
    }

    /// `list` finds the list of an attempt.
    pub(crate) fn decode(
        bytes: &[u8],
        list: impl FnOnce(Attempt) -> Option<Arc<Record>>,
    ) -> Result<Self, Malformed> {
        let (&kind, rest) = bytes.split_first().ok_or(Malformed)?;
        Ok(match (kind, rest) {
            (kind::NOT_OPEN, []) => Self::NotOpen,
            (kind::DONE, []) => Self::Done,
            (kind::REPLY, _) => Self::Reply(decode_reply(rest, list)?),
            (kind::STATUS_OF, _) => Self::Status(decode_all(rest)?),
            (kind::OPEN_OTHERWISE, _) => Self::OpenOtherwise(Opening::decode(rest)?),
            (kind::TOO_MANY, []) => Self::TooMany,
            (kind::WAS_SILENT, []) => Self::WasSilent,
            _ => return Err(Malformed),
        })
    }
}
