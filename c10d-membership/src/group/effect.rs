//! The inputs and effects of a group.

use std::sync::Arc;

use crate::attempt::Attempt;
use crate::event::{EndReason, Event, EventNumber, Reason};
use crate::identity::MemberKey;
use crate::message::{Message, Reply};
use crate::record::Record;

/// An input of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Input {
    /// A member's request.
    Message(MemberKey, Message),
    /// The process has exited, as reported by its launcher.
    Dead(MemberKey),
    /// The connection or session of the process has ended, or its lease has expired: the process may still run, but is no longer
    /// a member.
    Silent(MemberKey),
    /// The owner of the group closes it.
    Close,
    /// Time has passed: due at [`Group::wake_at`](crate::Group::wake_at).
    Tick,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The answer to [`Input::Message`]; [`Reply::Accepted`] to the other inputs.
    pub reply: Reply,
    /// The effects, which must be carried out in this order, before the reply is sent.
    pub effects: Vec<Effect>,
}

/// An effect to carry out. The number of effects does not depend on the number of members, with one exception: there
/// is one [`Effect::Dismiss`] for each evicted member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Make this state durable before the effects that follow. It replaces the state kept before, and is for
    /// [`Group::recover`](crate::Group::recover).
    Keep(Kept),
    /// There is a new event: answer the polls that wait, each with a new call of [`Group::poll`](crate::Group::poll).
    /// Most of them get this event.
    Announce(EventNumber, Event),
    /// The process is no longer a member: answer its poll, if one waits.
    Dismiss(MemberKey, Reason),
    /// Fail all waits of the store on keys of this attempt, including later waits. The attempt does not commit, or is
    /// a broken generation, and its members wait in torch's calls for a member that will not arrive.
    ReleaseWaits(Attempt),
    /// Delete the keys of all attempts before this one, which has committed.
    DeleteKeysBefore(Attempt),
}

/// The state that a service must not lose, so that no attempt repeats and a generation survives a restart.
///
/// It is written twice for each change. If a service keeps nothing, use a new [`Nonce`](crate::Nonce) at each start:
/// no uuid repeats, and the members form a new group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Kept {
    /// The newest attempt. Attempt numbers up to this one are never used again.
    pub last: Attempt,
    /// The last generation. It is whole if its attempt is `last`.
    pub committed: Option<Arc<Record>>,
    /// The reason why the group ended; `None` while it has not.
    pub end: Option<EndReason>,
}

impl Kept {
    /// Restores the state of an [`Effect::Keep`] from its parts.
    pub const fn new(
        last: Attempt,
        committed: Option<Arc<Record>>,
        end: Option<EndReason>,
    ) -> Self {
        Self {
            last,
            committed,
            end,
        }
    }
}
