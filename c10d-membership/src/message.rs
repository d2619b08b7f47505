//! The messages of a member to the service, the answers, and the events that the service sends to its members.
//!
//! Each message may be lost and repeated. A member gets the events as answers to its polls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::record::{Attempt, MemberKey, Record};

/// A request of a member. All requests except polls are answered at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Message {
    /// The process wants to take part.
    Hello {
        /// The handle of the process in torch's list.
        handle: Arc<str>,
        /// The number of steps that the process has done.
        step: u64,
    },
    /// The process has left the old mesh.
    Ready {
        /// The proposed attempt.
        attempt: Attempt,
        /// The handle after leaving.
        handle: Arc<str>,
        /// The number of steps that the process has done.
        step: u64,
    },
    /// Torch's call has returned.
    Ack {
        /// The attempt of the list.
        attempt: Attempt,
        /// Whether it succeeded.
        is_ok: bool,
    },
    /// The process has done this step, and requests permission for the next one. All members send this at the same
    /// steps, or one member sends it and distributes the answer to the other members in a collective.
    Boundary {
        /// The generation of the member.
        generation: Attempt,
        /// The number of steps that the process has done.
        step: u64,
    },
    /// The process wants to leave: at the next step boundary if it is in a generation, otherwise at once.
    Leave,
    /// A [`Message::Poll`] of a member that has done its last step. It repeats [`Message::finished`], because a restarted
    /// service has forgotten that.
    PollFinished {
        /// The generation of the member.
        generation: Attempt,
        /// The number of the last event that has arrived.
        after: EventNumber,
    },
    /// Asks for the next event after this number.
    Poll {
        /// The number of the last event that has arrived.
        after: EventNumber,
        /// Repeats [`Message::Leave`], which a restarted service has forgotten.
        is_leaving: bool,
    },
}

impl Message {
    /// Returns the message of a member that has done its last step of this generation. It has the form of a boundary
    /// that is not used by a step: release 0.2 answers it with [`Reply::Proceed`], and this one with
    /// [`Reply::Accepted`].
    pub const fn finished(generation: Attempt) -> Self {
        let step = u64::MAX;
        Self::Boundary { generation, step }
    }

    /// Returns the number of the last event that a poll names; `None` if the message is answered at once.
    pub const fn polls_after(&self) -> Option<EventNumber> {
        match self {
            Self::Poll { after, .. } | Self::PollFinished { after, .. } => Some(*after),
            _ => None,
        }
    }
}

/// The answer to a [`Message`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reply {
    /// The message was noted, now or before.
    Accepted,
    /// The message is of an attempt or generation that is over: poll for the next event.
    Over,
    /// The answer at a boundary: begin the next step.
    Proceed,
    /// The answer at a boundary: leave the mesh here, and send that the process is ready for this attempt.
    Change(Attempt),
    /// The answer to a poll: the next event.
    Event(EventNumber, Event),
    /// The answer to a poll without a new event. Ask again when [`Effect::Announce`](crate::Effect::Announce) is
    /// carried out.
    NotYet,
    /// The service does not have the process: leave the mesh, forget the number of the last event, and send a hello.
    Unknown,
    /// The process is no longer a member, and cannot become one again.
    Evicted(Reason),
    /// The group has ended.
    Ended(EndReason),
    /// The message exceeds a limit. It had no effect.
    Refused(Limit),
}

/// A limit of [`GroupOptions`](crate::GroupOptions).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// The limit `members_max`.
    Members(usize),
    /// The limit `newcomers_max`.
    Newcomers(usize),
    /// The limit `handle_bytes_max`.
    HandleBytes(usize),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Members(max) => write!(f, "the group has {max} members, and may have no more"),
            Self::Newcomers(max) => write!(f, "{max} newcomers wait for a change, and no more may"),
            Self::HandleBytes(max) => write!(f, "the handle has more than {max} bytes"),
        }
    }
}

/// An event that a member must react to. A newer event replaces the older events, so that a member that missed some
/// needs only the last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// Leave the old mesh, then send [`Message::Ready`].
    Propose {
        /// The attempt for which members report that they are ready.
        attempt: Attempt,
        /// The time at which the member must leave.
        leave: Leave,
        /// When the service continues without the members that are not ready, by its clock.
        deadline: Duration,
    },
    /// All members are ready: call torch's `_reconfigure` with this list, then acknowledge.
    Call {
        /// The list, and the uuid.
        record: Arc<Record>,
        /// The time when the service abandons the attempt, by its clock.
        deadline: Duration,
    },
    /// All members have acknowledged: the attempt is a generation. The first collective may begin.
    Commit {
        /// The list of the generation.
        record: Arc<Record>,
    },
    /// The mesh is broken, and too few members remain: leave the mesh, and wait.
    Break {
        /// The generation or attempt that broke.
        attempt: Attempt,
        /// The first of the causes.
        cause: Cause,
    },
    /// The group has ended. The last event.
    Ended(EndReason),
}

/// The time at which a member must leave the old mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Leave {
    /// Leave at once, even out of a blocked call: the mesh is broken.
    Now(Cause),
    /// Leave at the first step boundary that the service does not let pass. Until then the mesh is whole.
    AtBoundary {
        /// The step, if it is known. It is for people: the answer at the boundary decides.
        step: Option<u64>,
    },
}

/// Orders the events of one member: by attempt, and within it.
///
/// It follows from the state of the group alone. So the service keeps nothing for a member, and continues after a
/// restart. A service that has lost its state starts again: 30 bits of its [`Nonce`](crate::Nonce) are part of the
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventNumber(pub u64);

impl EventNumber {
    /// The number before every event.
    pub const NONE: Self = Self(0);
    pub(crate) const LAST: Self = Self(u64::MAX);

    pub(crate) fn new(attempt: Attempt, stage: Stage) -> Self {
        Self((attempt.uuid() << 2) | stage as u64)
    }

    /// Whether an event is news for a member whose last event is `after`: it is later, or of another service, whose
    /// numbers cannot be compared.
    pub(crate) const fn is_news_after(self, after: Self) -> bool {
        self.0 > after.0 || self.0 >> 34 != after.0 >> 34
    }
}

/// The stages of an attempt, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Propose,
    Call,
    Commit,
    Break,
}

/// The cause of a break or change of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The first attempt.
    First,
    /// Members joined or left at a step boundary.
    Change,
    /// This member has left the group, for this reason.
    Lost(MemberKey, Reason),
    /// Torch's call failed at a member.
    CallFailed(MemberKey),
    /// Some members stopped at a step boundary, others did not reach it in time.
    BoundaryTimedOut,
    /// The service was restarted while an attempt was under way.
    Restarted,
}

/// The reason why a process is no longer a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Reason {
    /// The launcher of the process reported its exit.
    Dead = 1,
    /// The connection or session of the process has ended, most likely with the process, or no heartbeat arrived in time.
    Silent,
    /// The process was not ready in time.
    NotReady,
    /// The process did not acknowledge in time.
    NotAcknowledged,
    /// A newer process has its id.
    Replaced,
    /// Another member has its handle.
    HandleTaken,
    /// Calls with it failed, and calls without newcomers did not.
    CallsFailed,
    /// The process waited for a step boundary that no other member reached in time.
    NoBoundary,
    /// The process requested to leave.
    Left,
}

/// The reason why a group has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum EndReason {
    /// All members of a generation have done their last step, or all have left.
    Finished = 1,
    /// Too few members arrived to begin, or to continue.
    BelowMinimum,
    /// Torch's call failed too often in a row.
    CallsFailed,
    /// The owner of the group closed it.
    Closed,
    /// All 2^32 - 1 attempts were used.
    AttemptsUsedUp,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dead => "its process has ended",
            Self::Silent => "its connection has ended or was silent",
            Self::NotReady => "it was not ready in time",
            Self::NotAcknowledged => "it did not acknowledge its call in time",
            Self::Replaced => "a later process has its id",
            Self::HandleTaken => "another member has its handle",
            Self::CallsFailed => "calls with newcomers failed",
            Self::NoBoundary => "no member reached a step boundary in time",
            Self::Left => "it left",
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("the group forms"),
            Self::Change => f.write_str("members came or left at a step boundary"),
            Self::Lost(member, reason) => write!(f, "{member} was lost: {reason}"),
            Self::CallFailed(member) => write!(f, "the call failed at {member}"),
            Self::BoundaryTimedOut => {
                f.write_str("members did not reach the step boundary in time")
            }
            Self::Restarted => f.write_str("the service was restarted during an attempt"),
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finished => "all members have finished",
            Self::BelowMinimum => "too few members for too long",
            Self::CallsFailed => "too many calls failed in a row",
            Self::Closed => "the group was closed",
            Self::AttemptsUsedUp => "all attempts are used up",
        })
    }
}
