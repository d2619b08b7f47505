//! The messages of a member to the service, and the answers. Each message may be lost and repeated.

use std::fmt;
use std::sync::Arc;

use crate::event::{EndReason, Event, EventNumber, Reason};
use crate::identity::Attempt;

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
