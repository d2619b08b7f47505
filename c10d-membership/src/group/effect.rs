//! What a group is told, and what it wants done.

use std::sync::Arc;

use crate::attempt::Attempt;
use crate::event::{EndReason, Event, EventNumber, Reason};
use crate::identity::MemberKey;
use crate::message::{Message, Reply};
use crate::record::Record;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Input {
    /// A member's request.
    Message(MemberKey, Message),
    /// The process has ended, says its launcher or the end of its session.
    Dead(MemberKey),
    /// Its lease has expired: it may still run, but is no member any more.
    Silent(MemberKey),
    /// The owner of the group ends it.
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
    /// To be carried out in this order, before the reply is sent.
    pub effects: Vec<Effect>,
}

/// What to do. Their number does not depend on the number of members, but for [`Effect::Dismiss`]: one for each member
/// that is evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Make this durable before the effects that follow, in place of what was kept before. For
    /// [`Group::recover`](crate::Group::recover).
    Keep(Kept),
    /// There is a new event: answer the polls that wait, each with a new call of
    /// [`Group::poll`](crate::Group::poll). The event is what most of them get.
    Announce(EventNumber, Event),
    /// The process is no member any more: answer its poll, if one waits.
    Dismiss(MemberKey, Reason),
    /// Fail all waits of the store on keys of this attempt, which does not commit or is a generation that is broken: its
    /// members wait in torch's calls for a member that does not come. Waits that begin later fail too.
    ReleaseWaits(Attempt),
    /// Delete the keys of all attempts before this one, which has committed.
    DeleteKeysBefore(Attempt),
}

/// What a service must not lose, so that no attempt repeats and a generation survives a restart.
///
/// It is written twice for each change. With a service that keeps nothing, use a new [`Nonce`](crate::Nonce) at each
/// start: no uuid repeats, and the members form a new group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Kept {
    /// The newest attempt. No attempt up to this one is ever made again.
    pub last: Attempt,
    /// The last generation. It is whole if its attempt is `last`.
    pub committed: Option<Arc<Record>>,
    /// Why the group ended, if it has.
    pub end: Option<EndReason>,
}

impl Kept {
    /// As it was in an [`Effect::Keep`].
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
