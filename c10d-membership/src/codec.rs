//! The bytes of messages, replies, lists and the kept state of a service: docs/spec/wire-extensions.md, section 9.13.
//!
//! Integers are little-endian; a handle has its length before it, or is the rest. The input is untrusted: a length is
//! compared with the number of remaining bytes before memory is reserved, and left-over bytes are an error. Values
//! are not checked against the [`GroupOptions`] of a group, which does that itself.

use std::sync::Arc;
use std::time::Duration;

use crate::group::{GroupStage, GroupStatus, Kept, MemberStatus};
use crate::message::{Cause, EndReason, Event, EventNumber, Leave, Limit, Message, Reason, Reply};
use crate::options::GroupOptions;
use crate::record::{Attempt, MemberKey, Record, Seat};
use byteorder::{ByteOrder, LE};

/// The bytes are not an encoded value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The most members of a group, newcomers, and evicted members that are remembered.
pub(crate) const MEMBERS_MAX: u32 = 1 << 16;

/// The most bytes of a handle.
pub(crate) const HANDLE_BYTES_MAX: u32 = 1 << 12;

/// The fewest bytes of a seat.
const SEAT_BYTES_MIN: usize = 2 * 8 + 8 + 4 + 4;

/// The rank of a newcomer, and a time that does not come.
pub(crate) const NONE: u32 = u32::MAX;

/// A member in a status.
const MEMBER_BYTES: usize = 2 * 8 + 4 + 1;

/// A value that can be written as bytes and read from them.
pub trait Encode: Sized {
    /// Appends the value.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads the value from the front of `bytes`, and advances `bytes` past it.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not such a value.
    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed>;
}

/// Reads a value from all of the bytes.
///
/// # Errors
/// [`Malformed`] if the bytes are not such a value, or bytes remain after it.
pub fn decode_all<T: Encode>(mut bytes: &[u8]) -> Result<T, Malformed> {
    let value = T::decode(&mut bytes)?;
    if bytes.is_empty() {
        Ok(value)
    } else {
        Err(Malformed)
    }
}

impl Encode for u32 {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, *self);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        u32_of(bytes)
    }
}

impl Encode for MemberKey {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.id.0);
        put_u64(out, self.incarnation.0);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(Self::new(u64_of(bytes)?, u64_of(bytes)?))
    }
}

impl Encode for Attempt {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.uuid());
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Self::from_uuid(u64_of(bytes)?).ok_or(Malformed)
    }
}

impl Message {
    /// The first byte of [`Message::Hello`].
    pub const HELLO_BYTE: u8 = 1;
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { handle, step } => {
                out.push(Self::HELLO_BYTE);
                put_u64(out, *step);
                put_text(out, handle);
            }
            Self::Ready {
                attempt,
                handle,
                step,
            } => {
                out.push(2);
                attempt.encode(out);
                put_u64(out, *step);
                put_text(out, handle);
            }
            Self::Ack { attempt, is_ok } => {
                out.push(3);
                attempt.encode(out);
                out.push(u8::from(*is_ok));
            }
            Self::Boundary { generation, step } => {
                out.push(4);
                generation.encode(out);
                put_u64(out, *step);
            }
            Self::Leave => out.push(5),
            Self::Poll { after, is_leaving } => {
                out.push(6);
                put_u64(out, after.0);
                out.push(u8::from(*is_leaving));
            }
            Self::PollFinished { generation, after } => {
                out.push(7);
                generation.encode(out);
                put_u64(out, after.0);
            }
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(match byte_of(bytes)? {
            Self::HELLO_BYTE => {
                let step = u64_of(bytes)?;
                let handle = text_of(bytes)?;
                Self::Hello { handle, step }
            }
            2 => {
                let (attempt, step) = (Attempt::decode(bytes)?, u64_of(bytes)?);
                let handle = text_of(bytes)?;
                Self::Ready {
                    attempt,
                    handle,
                    step,
                }
            }
            3 => Self::Ack {
                attempt: Attempt::decode(bytes)?,
                is_ok: flag_of(bytes)?,
            },
            4 => Self::Boundary {
                generation: Attempt::decode(bytes)?,
                step: u64_of(bytes)?,
            },
            5 => Self::Leave,
            6 => Self::Poll {
                after: EventNumber(u64_of(bytes)?),
                is_leaving: flag_of(bytes)?,
            },
            7 => Self::PollFinished {
                generation: Attempt::decode(bytes)?,
                after: EventNumber(u64_of(bytes)?),
            },
            _ => return Err(Malformed),
        })
    }
}

/// Appends a reply. Its deadline is sent as the remaining time at `now`. A list is not sent with it: see [`list_of`].
pub fn encode_reply(reply: &Reply, now: Duration, out: &mut Vec<u8>) {
    match reply {
        Reply::Accepted => out.push(1),
        Reply::Over => out.push(2),
        Reply::Proceed => out.push(3),
        Reply::Change(attempt) => {
            out.push(4);
            attempt.encode(out);
        }
        Reply::Event(number, event) => {
            out.push(5);
            put_u64(out, number.0);
            encode_event(event, now, out);
        }
        Reply::NotYet => out.push(6),
        Reply::Unknown => out.push(7),
        Reply::Evicted(reason) => out.extend([8, *reason as u8]),
        Reply::Ended(reason) => out.extend([9, *reason as u8]),
        Reply::Refused(limit) => {
            let (kind, max) = match limit {
                Limit::Members(max) => (1, max),
                Limit::Newcomers(max) => (2, max),
                Limit::HandleBytes(max) => (3, max),
            };
            out.extend([10, kind]);
            put_u64(out, *max as u64);
        }
    }
}

/// Reads a reply from all of the bytes. `list` finds the list of an attempt, which arrived with the reply or earlier.
/// Deadlines are the time that remained when the service sent the reply.
///
/// # Errors
/// [`Malformed`] if the bytes are not a reply, or `list` does not find its list.
pub fn decode_reply(
    mut bytes: &[u8],
    list: impl FnOnce(Attempt) -> Option<Arc<Record>>,
) -> Result<Reply, Malformed> {
    let bytes = &mut bytes;
    let reply = match byte_of(bytes)? {
        1 => Reply::Accepted,
        2 => Reply::Over,
        3 => Reply::Proceed,
        4 => Reply::Change(Attempt::decode(bytes)?),
        5 => {
            let number = EventNumber(u64_of(bytes)?);
            Reply::Event(number, decode_event(bytes, list)?)
        }
        6 => Reply::NotYet,
        7 => Reply::Unknown,
        8 => Reply::Evicted(reason_of(bytes)?),
        9 => Reply::Ended(end_of(bytes)?),
        10 => {
            let kind = byte_of(bytes)?;
            let max = usize::try_from(u64_of(bytes)?).map_err(|_| Malformed)?;
            Reply::Refused(match kind {
                1 => Limit::Members(max),
                2 => Limit::Newcomers(max),
                3 => Limit::HandleBytes(max),
                _ => return Err(Malformed),
            })
        }
        _ => return Err(Malformed),
    };
    if bytes.is_empty() {
        Ok(reply)
    } else {
        Err(Malformed)
    }
}

/// Returns the list that a reply needs.
pub const fn list_of(reply: &Reply) -> Option<&Arc<Record>> {
    match reply {
        Reply::Event(_, Event::Call { record, .. } | Event::Commit { record }) => Some(record),
        _ => None,
    }
}

fn encode_event(event: &Event, now: Duration, out: &mut Vec<u8>) {
    match event {
        Event::Propose {
            attempt,
            leave,
            deadline,
        } => {
            out.push(1);
            attempt.encode(out);
            put_millis(out, deadline.saturating_sub(now));
            match leave {
                Leave::Now(cause) => {
                    out.push(1);
                    encode_cause(*cause, out);
                }
                Leave::AtBoundary { step: None } => out.push(2),
                Leave::AtBoundary { step: Some(step) } => {
                    out.push(3);
                    put_u64(out, *step);
                }
            }
        }
        Event::Call { record, deadline } => {
            out.push(2);
            record.attempt.encode(out);
            put_millis(out, deadline.saturating_sub(now));
        }
        Event::Commit { record } => {
            out.push(3);
            record.attempt.encode(out);
        }
        Event::Break { attempt, cause } => {
            out.push(4);
            attempt.encode(out);
            encode_cause(*cause, out);
        }
        Event::Ended(reason) => out.extend([5, *reason as u8]),
    }
}

fn decode_event(
    bytes: &mut &[u8],
    list: impl FnOnce(Attempt) -> Option<Arc<Record>>,
) -> Result<Event, Malformed> {
    let found = |attempt| list(attempt).filter(|record| record.attempt == attempt);
    Ok(match byte_of(bytes)? {
        1 => Event::Propose {
            attempt: Attempt::decode(bytes)?,
            deadline: millis_of(bytes)?,
            leave: match byte_of(bytes)? {
                1 => Leave::Now(cause_of(bytes)?),
                2 => Leave::AtBoundary { step: None },
                3 => Leave::AtBoundary {
                    step: Some(u64_of(bytes)?),
                },
                _ => return Err(Malformed),
            },
        },
        2 => {
            let (attempt, deadline) = (Attempt::decode(bytes)?, millis_of(bytes)?);
            let record = found(attempt).ok_or(Malformed)?;
            Event::Call { record, deadline }
        }
        3 => {
            let record = found(Attempt::decode(bytes)?).ok_or(Malformed)?;
            Event::Commit { record }
        }
        4 => Event::Break {
            attempt: Attempt::decode(bytes)?,
            cause: cause_of(bytes)?,
        },
        5 => Event::Ended(end_of(bytes)?),
        _ => return Err(Malformed),
    })
}

impl Encode for Seat {
    fn encode(&self, out: &mut Vec<u8>) {
        self.member.encode(out);
        put_u64(out, self.step);
        put_u32(out, self.previous.unwrap_or(NONE));
        put_text(out, &self.handle);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(Self {
            member: MemberKey::decode(bytes)?,
            step: u64_of(bytes)?,
            previous: rank_of(bytes)?,
            handle: text_of(bytes)?,
        })
    }
}

impl Encode for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(8 + 4 + 4 + self.seats.len() * (SEAT_BYTES_MIN + 48));
        self.attempt.encode(out);
        put_u32(out, saturated(self.source));
        put_u32(out, saturated(self.seats.len()));
        for seat in &self.seats {
            seat.encode(out);
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let attempt = Attempt::decode(bytes)?;
        let source = u32_of(bytes)? as usize;
        let count = u32_of(bytes)? as usize;
        if count > bytes.len() / SEAT_BYTES_MIN || source >= count {
            return Err(Malformed);
        }
        let mut seats = Vec::with_capacity(count);
        for _ in 0..count {
            seats.push(Seat::decode(bytes)?);
        }
        Ok(Self {
            attempt,
            seats,
            source,
        })
    }
}

impl Encode for Kept {
    fn encode(&self, out: &mut Vec<u8>) {
        self.last.encode(out);
        out.push(self.end.map_or(0, |it| it as u8));
        out.push(u8::from(self.committed.is_some()));
        if let Some(record) = &self.committed {
            record.encode(out);
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let last = Attempt::decode(bytes)?;
        let end = match bytes.first() {
            Some(0) => {
                byte_of(bytes)?;
                None
            }
            _ => Some(end_of(bytes)?),
        };
        let committed = match flag_of(bytes)? {
            true => Some(Arc::new(Record::decode(bytes)?)),
            false => None,
        };
        // A generation is of the same service as the last attempt, and not later.
        let fits = committed
            .as_ref()
            .is_none_or(|record| record.attempt <= last && record.attempt.has_nonce_of(last));
        if fits {
            Ok(Self::new(last, committed, end))
        } else {
            Err(Malformed)
        }
    }
}

/// Times have whole milliseconds, 2^32 - 1 at most, and limits are capped at the greatest value of the format.
impl Encode for GroupOptions {
    fn encode(&self, out: &mut Vec<u8>) {
        let Self {
            size_min,
            size_first,
            form_timeout,
            ready_timeout,
            ack_timeout,
            below_min_timeout,
            replace_wait,
            boundary_timeout,
            return_timeout,
            failed_calls_max,
            members_max,
            newcomers_max,
            handle_bytes_max,
            evicted_max,
        } = self;
        for count in [
            size_min,
            size_first,
            members_max,
            newcomers_max,
            evicted_max,
        ] {
            put_u32(out, saturated(*count).min(MEMBERS_MAX));
        }
        put_u32(out, saturated(*handle_bytes_max).min(HANDLE_BYTES_MAX));
        put_u32(out, *failed_calls_max);
        for time in [
            form_timeout,
            ready_timeout,
            ack_timeout,
            below_min_timeout,
            replace_wait,
            boundary_timeout,
            return_timeout,
        ] {
            put_millis(out, *time);
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let mut counts = [0; 5];
        for count in &mut counts {
            *count = up_to(MEMBERS_MAX, bytes)?;
        }
        let [
            size_min,
            size_first,
            members_max,
            newcomers_max,
            evicted_max,
        ] = counts;
        if size_min == 0 {
            return Err(Malformed);
        }
        Ok(Self {
            size_first,
            members_max,
            newcomers_max,
            evicted_max,
            handle_bytes_max: up_to(HANDLE_BYTES_MAX, bytes)?,
            failed_calls_max: u32_of(bytes)?,
            form_timeout: millis_of(bytes)?,
            ready_timeout: millis_of(bytes)?,
            ack_timeout: millis_of(bytes)?,
            below_min_timeout: millis_of(bytes)?,
            replace_wait: millis_of(bytes)?,
            boundary_timeout: millis_of(bytes)?,
            return_timeout: millis_of(bytes)?,
            ..Self::new(size_min)
        })
    }
}

impl Encode for GroupStatus {
    fn encode(&self, out: &mut Vec<u8>) {
        match self.stage {
            GroupStage::Forming => out.push(1),
            GroupStage::Proposed => out.push(2),
            GroupStage::Calling => out.push(3),
            GroupStage::Committed => out.push(4),
            GroupStage::Changing => out.push(5),
            GroupStage::Breaking => out.push(6),
            GroupStage::Ended(reason) => out.extend([7, reason as u8]),
        }
        self.attempt.encode(out);
        match self.generation {
            None => out.push(0),
            Some(generation) => {
                out.push(1);
                generation.encode(out);
                put_u32(out, saturated(self.size));
            }
        }
        put_millis(out, self.time_left.unwrap_or(Duration::MAX));
        put_u32(out, saturated(self.members.len()));
        for it in &self.members {
            it.member.encode(out);
            put_u32(out, it.rank.unwrap_or(NONE));
            out.push(u8::from(it.is_awaited));
        }
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let stage = match byte_of(bytes)? {
            1 => GroupStage::Forming,
            2 => GroupStage::Proposed,
            3 => GroupStage::Calling,
            4 => GroupStage::Committed,
            5 => GroupStage::Changing,
            6 => GroupStage::Breaking,
            7 => GroupStage::Ended(end_of(bytes)?),
            _ => return Err(Malformed),
        };
        let attempt = Attempt::decode(bytes)?;
        let (generation, size) = match flag_of(bytes)? {
            true => (Some(Attempt::decode(bytes)?), u32_of(bytes)? as usize),
            false => (None, 0),
        };
        let time_left = match u32_of(bytes)? {
            NONE => None,
            millis => Some(Duration::from_millis(u64::from(millis))),
        };
        let count = u32_of(bytes)? as usize;
        if count > bytes.len() / MEMBER_BYTES {
            return Err(Malformed);
        }
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            members.push(MemberStatus {
                member: MemberKey::decode(bytes)?,
                rank: rank_of(bytes)?,
                is_awaited: flag_of(bytes)?,
                has_finished: false,
                boundary: None,
            });
        }
        Ok(Self {
            stage,
            attempt,
            generation,
            size,
            time_left,
            stopped_for: None,
            members,
            departures: Vec::new(),
            lost: Vec::new(),
        })
    }
}

fn encode_cause(cause: Cause, out: &mut Vec<u8>) {
    match cause {
        Cause::First => out.push(1),
        Cause::Change => out.push(2),
        Cause::Lost(member, reason) => {
            out.extend([3, reason as u8]);
            member.encode(out);
        }
        Cause::CallFailed(member) => {
            out.push(4);
            member.encode(out);
        }
        Cause::BoundaryTimedOut => out.push(5),
        Cause::Restarted => out.push(6),
    }
}

fn cause_of(bytes: &mut &[u8]) -> Result<Cause, Malformed> {
    Ok(match byte_of(bytes)? {
        1 => Cause::First,
        2 => Cause::Change,
        3 => {
            let reason = reason_of(bytes)?;
            Cause::Lost(MemberKey::decode(bytes)?, reason)
        }
        4 => Cause::CallFailed(MemberKey::decode(bytes)?),
        5 => Cause::BoundaryTimedOut,
        6 => Cause::Restarted,
        _ => return Err(Malformed),
    })
}

/// All reasons. Each is represented by its number, and 0 by none.
const REASONS: [Reason; 9] = [
    Reason::Dead,
    Reason::Silent,
    Reason::NotReady,
    Reason::NotAcknowledged,
    Reason::Replaced,
    Reason::HandleTaken,
    Reason::CallsFailed,
    Reason::NoBoundary,
    Reason::Left,
];

fn reason_of(bytes: &mut &[u8]) -> Result<Reason, Malformed> {
    let byte = byte_of(bytes)?;
    let mut reasons = REASONS.into_iter();
    reasons.find(|it| *it as u8 == byte).ok_or(Malformed)
}

const END_REASONS: [EndReason; 5] = [
    EndReason::Finished,
    EndReason::BelowMinimum,
    EndReason::CallsFailed,
    EndReason::Closed,
    EndReason::AttemptsUsedUp,
];

fn end_of(bytes: &mut &[u8]) -> Result<EndReason, Malformed> {
    let byte = byte_of(bytes)?;
    let mut reasons = END_REASONS.into_iter();
    reasons.find(|it| *it as u8 == byte).ok_or(Malformed)
}

pub(crate) fn put_u32(out: &mut Vec<u8>, number: u32) {
    let mut word = [0; 4];
    LE::write_u32(&mut word, number);
    out.extend_from_slice(&word);
}

pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    let mut word = [0; 8];
    LE::write_u64(&mut word, number);
    out.extend_from_slice(&word);
}

/// Rounds up, so that a remaining wait does not become 0.
fn put_millis(out: &mut Vec<u8>, time: Duration) {
    let millis = time.as_nanos().div_ceil(1_000_000);
    put_u32(out, u32::try_from(millis).unwrap_or(u32::MAX));
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_u32(out, saturated(text.len()));
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn saturated(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(crate) fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Malformed> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(Malformed)?;
    *bytes = rest;
    Ok(taken)
}

pub(crate) fn byte_of(bytes: &mut &[u8]) -> Result<u8, Malformed> {
    Ok(take(bytes, 1)?[0])
}

fn flag_of(bytes: &mut &[u8]) -> Result<bool, Malformed> {
    match byte_of(bytes)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed),
    }
}

pub(crate) fn u32_of(bytes: &mut &[u8]) -> Result<u32, Malformed> {
    Ok(LE::read_u32(take(bytes, 4)?))
}

pub(crate) fn u64_of(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    Ok(LE::read_u64(take(bytes, 8)?))
}

fn millis_of(bytes: &mut &[u8]) -> Result<Duration, Malformed> {
    Ok(Duration::from_millis(u64::from(u32_of(bytes)?)))
}

fn rank_of(bytes: &mut &[u8]) -> Result<Option<u32>, Malformed> {
    Ok(Some(u32_of(bytes)?).filter(|rank| *rank != NONE))
}

fn up_to(max: u32, bytes: &mut &[u8]) -> Result<usize, Malformed> {
    let number = u32_of(bytes)?;
    if number <= max {
        Ok(number as usize)
    } else {
        Err(Malformed)
    }
}

fn text_of(bytes: &mut &[u8]) -> Result<Arc<str>, Malformed> {
    let length = u32_of(bytes)? as usize;
    let text = std::str::from_utf8(take(bytes, length)?).map_err(|_| Malformed)?;
    Ok(text.into())
}
