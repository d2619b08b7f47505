//! What a member says to the service, and the answer. Each message may be lost and repeated.

use std::fmt;
use std::sync::Arc;

use crate::attempt::Attempt;
use crate::event::{EndReason, Event, EventNumber, Reason};

/// A request of a member. All but the polls are answered at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Message {
    /// I want to take part.
    Hello {
        /// What torch lists the process under.
        handle: Arc<str>,
        /// How many steps it has done.
        step: u64,
    },
    /// I have left the old mesh.
    Ready {
        /// The one that was proposed.
        attempt: Attempt,
        /// The handle after leaving.
        handle: Arc<str>,
        /// How many steps it has done.
        step: u64,
    },
    /// Torch's call has returned.
    Ack {
        /// That of the list.
        attempt: Attempt,
        /// Whether it succeeded.
        is_ok: bool,
    },
    /// I have done this step: may I begin the next one? All members ask at the same steps, or one asks and tells the
    /// others in a collective.
    Boundary {
        /// The one that it is in.
        generation: Attempt,
        /// How many steps it has done.
        step: u64,
    },
    /// I want to leave: at the next step boundary if I am in a generation, else at once.
    Leave,
    /// A [`Message::Poll`] of a member that has done its last step. It repeats [`Message::finished`], because a restarted
    /// service has forgotten that.
    PollFinished {
        /// The generation of the member.
        generation: Attempt,
        /// The number of the last event that has arrived.
        after: EventNumber,
    },
    /// The next event after this number, please.
    Poll {
        /// The number of the last event that has arrived.
        after: EventNumber,
        /// Repeats [`Message::Leave`], which a restarted service has forgotten.
        is_leaving: bool,
    },
}

impl Message {
    /// A member has done its last step of this generation. The form is a boundary that no step has: release 0.2 answers it with
    /// [`Reply::Proceed`], and this one with [`Reply::Accepted`].
    pub const fn finished(generation: Attempt) -> Self {
        let step = u64::MAX;
        Self::Boundary { generation, step }
    }

    /// The number of the last event that a poll has; `None` if the message is answered at once.
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
    /// Noted, now or before.
    Accepted,
    /// The message is of an attempt or generation that is over: poll.
    Over,
    /// To a boundary: begin the next step.
    Proceed,
    /// To a boundary: leave the mesh here, and say ready for this attempt.
    Change(Attempt),
    /// To a poll.
    Event(EventNumber, Event),
    /// To a poll: there is no such event yet. The answer is due when [`Effect::Announce`](crate::Effect::Announce) says
    /// so: ask again then.
    NotYet,
    /// The service does not know the process: leave the mesh, forget the number of the last event, say hello.
    Unknown,
    /// The process is no member any more, and cannot become one.
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
    /// `members_max`.
    Members(usize),
    /// `newcomers_max`.
    Newcomers(usize),
    /// `handle_bytes_max`.
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
