//! The tables of users on this worker, and of the children that they were forked into.

use std::sync::Arc;

use rpc_agent::WorkerId;

use super::error::UserError;
use super::holders::Arrival;
use crate::id::{ForkId, RRefId};

/// A user on this worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct User {
    pub(super) rref: RRefId,
    pub(super) owner: WorkerId,
    /// The incarnation of the owner's process; 0 while it is unknown.
    pub(super) owner_incarnation: u64,
    pub(super) type_name: Arc<str>,
    /// The worker that sent it; `None` for the creator's user.
    pub(super) parent: Option<WorkerId>,
    pub(super) state: State,
    /// Whether the program holds its handle.
    pub(super) has_handle: bool,
    /// How many entries of the context's `children` it has.
    pub(super) children: u32,
    /// Whether it was ever forked, so that other workers may have the reference.
    pub(super) was_forked: bool,
    /// Whether the creation timed out, and the owner has not accepted it since.
    pub(super) has_timed_out: bool,
}

/// The state of a user. A deleted user is not in the table; its deletion is in the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// The creation is under way.
    Creating,
    /// The owner is asked to register it.
    Requesting,
    /// The owner has confirmed it.
    Confirmed,
    /// The creation was not answered; the owner is asked to settle it.
    Unsettled(Arc<str>),
    /// The creation failed.
    Failed(Arc<str>, Failure),
    /// The owner refused the registration.
    Refused(Arc<str>),
    /// The owner is dead.
    OwnerLost,
}

/// The owner's state of a failed creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Failure {
    /// Nothing, and no worker will ask it.
    Unreported,
    /// The owner is being notified, because other workers may request the value.
    Reporting,
    /// The owner has the user, and answers requests with the error.
    Reported,
}

/// A user that was forked for another worker and is not known to be registered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Child {
    /// The user that it keeps alive.
    pub(super) parent: ForkId,
    pub(super) to: WorkerId,
    pub(super) arrival: Arrival,
}

/// A user whose owner was lost while the message that creates or registers it was under way. A later process of
/// the owner may accept that message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Orphan {
    pub(super) owner: WorkerId,
    pub(super) rref: RRefId,
    pub(super) fork: ForkId,
}

impl User {
    /// Returns why the user cannot be used; `None` if it can.
    pub(super) fn error(&self) -> Option<UserError> {
        match &self.state {
            State::Creating | State::Requesting | State::Confirmed => None,
            State::Unsettled(error) => Some(UserError::CreationUnknown(Arc::clone(error))),
            State::Failed(error, _) => Some(UserError::CreationFailed(Arc::clone(error))),
            State::Refused(reason) => Some(UserError::Refused(Arc::clone(reason))),
            State::OwnerLost => Some(UserError::OwnerLost(self.owner)),
        }
    }
}
