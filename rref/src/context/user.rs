//! The users on this worker, of values that others own, and the children that they have sent.
//!
//! A user is kept while the program holds its handle, while its registration at the owner is open, and
//! while a child of it may be unknown to the owner. Only then is its deletion sent.

use std::sync::Arc;
use std::time::Instant;

use rpc_agent::WorkerId;

use super::RRefContext;
use super::owner::Arrival;
use crate::effect::{Control, Delivery, Effect, UserError};
use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, Message};

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
    Doubtful(Arc<str>),
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
    Private,
    /// Others may ask it for the value: it is being told.
    Telling,
    /// It knows the user, and answers for the value with the error.
    Told,
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
pub(super) struct InVain {
    owner: WorkerId,
    rref: RRefId,
    fork: ForkId,
}

impl User {
    /// Why it is of no use, if so.
    pub(super) fn error(&self) -> Option<UserError> {
        match &self.state {
            State::Creating | State::Requesting | State::Confirmed => None,
            State::Doubtful(error) => Some(UserError::CreationUnknown(Arc::clone(error))),
            State::Failed(error, _) => Some(UserError::CreationFailed(Arc::clone(error))),
            State::Refused(reason) => Some(UserError::Refused(Arc::clone(reason))),
            State::OwnerLost => Some(UserError::OwnerLost(self.owner)),
        }
    }
}

impl<V: Clone> RRefContext<V> {
    pub(super) fn creation_finished(&mut self, now: Instant, fork: ForkId, delivery: Delivery) {
        let Some(user) = self.users.get_mut(&fork) else {
            return;
        };
        if user.state != State::Creating {
            return;
        }
        let was_forked = user.was_forked;
        let state = match delivery {
            Delivery::Answered {
                answer: Answer::RemoteAccept,
                incarnation,
            } => {
                user.owner_incarnation = incarnation;
                State::Confirmed
            }
            Delivery::Unknown(error) => State::Doubtful(error),
            Delivery::Answered {
                answer: Answer::Refused(error),
                ..
            }
            | Delivery::NotDelivered(error)
            | Delivery::Refused(error) => failed(error, was_forked),
            Delivery::Answered { answer, .. } => {
                failed(format!("unexpected answer {answer:?}").into(), was_forked)
            }
        };
        user.has_timed_out = matches!(state, State::Doubtful(_));
        if let State::Doubtful(error) | State::Failed(error, Failure::Telling) = &state {
            let message = Message::Abandon {
                rref: user.rref,
                fork,
                error: Arc::clone(error),
            };
            let owner = user.owner;
            user.state = state;
            self.send(now, owner, Control::Abandon(fork), message);
        } else {
            user.state = state;
        }
        self.tell(fork);
        self.settle_user(now, fork);
    }

    pub(super) fn fork_request_answered(
        &mut self,
        now: Instant,
        fork: ForkId,
        answered_by: u64,
        answer: Answer,
    ) {
        let Some(user) = self.users.get_mut(&fork) else {
            return;
        };
        let is_other =
            !matches!(user.owner_incarnation, 0) && answered_by != user.owner_incarnation;
        let (owner, rref) = (user.owner, user.rref);
        user.state = match answer {
            // A new process of the owner knows nothing of the value, and has registered it in vain.
            Answer::Ack if is_other => State::OwnerLost,
            Answer::Ack => {
                user.owner_incarnation = answered_by;
                State::Confirmed
            }
            Answer::Refused(reason) => State::Refused(reason),
            answer => State::Refused(format!("unexpected answer {answer:?}").into()),
        };
        let parent = user.parent;
        if user.state == State::OwnerLost {
            self.send_delete(now, owner, rref, fork);
        }
        self.tell(fork);
        // Known or refused: the parent has nothing to protect any more.
        if let Some(parent) = parent {
            self.send_child_accept(now, parent, fork);
        }
        self.settle_user(now, fork);
    }

    /// The message of a user that was given up has ended. If anybody has registered the user, it is deleted
    /// there.
    pub(super) fn ended_in_vain(&mut self, now: Instant, in_vain: InVain, delivery: &Delivery) {
        let InVain { owner, rref, fork } = in_vain;
        let may_be_known = match delivery {
            Delivery::Answered {
                incarnation,
                answer: Answer::Ack | Answer::RemoteAccept,
            } => self.hear(now, owner, *incarnation),
            Delivery::Unknown(_) => self.incarnation_of(owner).is_some(),
            _ => false,
        };
        if may_be_known {
            self.send_delete(now, owner, rref, fork);
        }
    }

    pub(super) fn abandon_answered(
        &mut self,
        now: Instant,
        fork: ForkId,
        answered_by: u64,
        answer: Answer,
    ) {
        let Some(user) = self.users.get_mut(&fork) else {
            return;
        };
        let (State::Doubtful(error) | State::Failed(error, _)) = &user.state else {
            return;
        };
        let error = Arc::clone(error);
        user.state = match answer {
            Answer::Created => {
                user.has_timed_out = false;
                user.owner_incarnation = answered_by;
                State::Confirmed
            }
            Answer::Abandoned => State::Failed(error, Failure::Told),
            _ => State::Failed(error, Failure::Private),
        };
        self.tell(fork);
        self.settle_user(now, fork);
    }

    /// Tells the shell how far the user is.
    fn tell(&mut self, fork: ForkId) {
        if let Some(user) = self.users.get(&fork) {
            self.effects.push(match user.error() {
                None => Effect::Confirmed { fork },
                Some(error) => Effect::Failed { fork, error },
            });
        }
    }

    pub(super) fn send_child_accept(&mut self, now: Instant, parent: WorkerId, fork: ForkId) {
        if parent == self.me {
            self.release_child(now, fork);
        } else {
            let control = Control::ChildAccept(fork);
            self.send(now, parent, control, Message::ChildAccept { fork });
        }
    }

    /// A child needs its parent no more.
    pub(super) fn release_child(&mut self, now: Instant, child: ForkId) {
        let Some(Child {
            parent, arrival, ..
        }) = self.children.remove(&child)
        else {
            return;
        };
        self.outbox.remove(Control::Query(child));
        if let Some(user) = self.users.get_mut(&parent) {
            user.children -= 1;
            let rref = user.rref;
            self.forget_arrival(arrival, rref, child);
            self.settle_user(now, parent);
        }
    }

    /// Removes the user if nothing keeps it, and has the owner told if that knows it.
    pub(super) fn settle_user(&mut self, now: Instant, fork: ForkId) {
        let Some(user) = self.users.get(&fork) else {
            return;
        };
        if user.has_handle || user.children > 0 {
            return;
        }
        let is_known = match user.state {
            State::Creating
            | State::Requesting
            | State::Doubtful(_)
            | State::Failed(_, Failure::Telling) => return,
            State::Confirmed | State::Failed(_, Failure::Told) => true,
            State::Failed(_, Failure::Private) | State::Refused(_) | State::OwnerLost => false,
        };
        let Some(user) = self.users.remove(&fork) else {
            return;
        };
        // A message is decoded once: this name is not to come again.
        if user.parent.is_some() {
            self.gone.insert(now, fork.0);
        }
        if is_known {
            self.send_delete(now, user.owner, user.rref, fork);
        }
    }

    /// The owner is dead: its values are no more, and neither is there anything to be told to it.
    pub(super) fn lose_owner(
        &mut self,
        now: Instant,
        owner: WorkerId,
        is_meant: impl Fn(&User) -> bool,
    ) {
        let forks: Vec<ForkId> = self
            .users
            .iter()
            .filter(|(_, user)| user.owner == owner && user.state != State::OwnerLost)
            .filter(|(_, user)| is_meant(user))
            .map(|(&fork, _)| fork)
            .collect();
        for fork in forks {
            let Some(user) = self.users.get_mut(&fork) else {
                continue;
            };
            let before = std::mem::replace(&mut user.state, State::OwnerLost);
            let in_vain = InVain {
                owner,
                rref: user.rref,
                fork,
            };
            match before {
                State::Creating => {
                    self.in_vain.insert(Control::Create(fork), in_vain);
                }
                State::Requesting if !self.outbox.is_stalled(Control::ForkRequest(fork)) => {
                    self.in_vain.insert(Control::ForkRequest(fork), in_vain);
                }
                _ => {}
            }
            let parent = user.parent.filter(|_| before == State::Requesting);
            self.tell(fork);
            // There is nothing to protect any more, which the parent may not know yet.
            if let Some(parent) = parent {
                self.send_child_accept(now, parent, fork);
            }
            self.settle_user(now, fork);
        }
        let users = &self.users;
        let children = self.children_where(|child| {
            users
                .get(&child.parent)
                .is_some_and(|parent| parent.state == State::OwnerLost)
        });
        for child in children {
            self.release_child(now, child);
        }
    }

    pub(super) fn children_where(&self, is_meant: impl Fn(&Child) -> bool) -> Vec<ForkId> {
        self.children
            .iter()
            .filter(|(_, child)| is_meant(child))
            .map(|(&fork, _)| fork)
            .collect()
    }
}

fn failed(error: Arc<str>, was_forked: bool) -> State {
    let failure = if was_forked {
        Failure::Telling
    } else {
        Failure::Private
    };
    State::Failed(error, failure)
}
