//! The events that the service sends to its members.

use crate::identity::{Attempt, MemberKey};
use crate::record::Record;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An event that a member must react to. A newer event replaces the older events, so that a member that missed some
/// needs only the last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// Leave the old mesh, then send [`Message::Ready`](crate::Message::Ready).
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
