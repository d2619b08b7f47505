//! The tables of users on this worker, and of the children that they were forked into.

use std::sync::Arc;
use std::time::Instant;

use rpc_agent::WorkerId;

use super::error::UserError;
use super::owned::Arrival;
use crate::id::{ForkId, RRefId};

/// A user on this worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct User {
    pub(super) rref: RRefId,
    pub(super) owner: WorkerId,
    /// Of the owner's process; 0 while it is not known.
    pub(super) owner_incarnation: u64,
    pub(super) type_name: Arc<str>,
    /// Who sent it; none for the creator's.
    pub(super) parent: Option<WorkerId>,
    pub(super) state: State,
    /// Whether the program holds it.
    pub(super) has_handle: bool,
    /// How many of the context's children are its own.
    pub(super) children: usize,
    /// Whether it ever was sent.
    pub(super) was_forked: bool,
    /// Its creation timed out, and its owner has not confirmed it.
    pub(super) has_timed_out: bool,
    pub(super) since: Instant,
}

/// How far a user is. A user to be deleted is no more among the users, but in the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// The creation is under way.
    Creating,
    /// The owner is asked to register it.
    Requesting,
    /// The owner knows it.
    Confirmed,
    /// The creation was not answered; the owner is asked to settle it.
    Unsettled(Arc<str>),
    /// The creation failed.
    Failed(Arc<str>, Failure),
    /// The owner did not register it.
    Refused(Arc<str>),
    /// The owner is dead.
    OwnerLost,
}

/// What the owner knows of a failed creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Failure {
    /// Nothing, and nobody asks it.
    Unreported,
    /// Others may ask it for the value: it is being told.
    Reporting,
    /// It knows the user, and answers for the value with the error.
    Reported,
}

/// A user that was sent to another worker, and is not known to have arrived and been registered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Child {
    /// Whose child it is.
    pub(super) parent: ForkId,
    pub(super) to: WorkerId,
    pub(super) arrival: Arrival,
    pub(super) since: Instant,
}

/// A creation or a registration that was given up with its owner while its message is still under way: a
/// later process of the worker may take it for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Orphan {
    pub(super) owner: WorkerId,
    pub(super) rref: RRefId,
    pub(super) fork: ForkId,
}

impl User {
    /// Why it is of no use, if so.
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
