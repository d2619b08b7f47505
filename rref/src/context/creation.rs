//! How a reference and its value are created: here, or on another worker.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use rpc_agent::WorkerId;

use super::effect::{Control, Delivery, Effect};
use super::error::UserError;
use super::holders::Holder;
use super::state::{Phase, RRefContext};
use super::user::{Failure, State, User};
use super::values::{Owned, UNCREATED_MAX, Value};
use crate::id::shared_name;
use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, Message, TYPE_NAME_BYTES_MAX, cut};

/// The fields of a creation's message.
pub(super) struct Creation {
    pub(super) rref: RRefId,
    pub(super) fork: ForkId,
    pub(super) type_name: Arc<str>,
    pub(super) function: Arc<str>,
    pub(super) arguments: Bytes,
}

impl<V: Clone> RRefContext<V> {
    /// Creates a reference to a value of this worker. Sends nothing.
    pub(crate) fn create_local(
        &mut self,
        now: Instant,
        type_name: &str,
        value: V,
    ) -> Result<RRefId, UserError> {
        self.create_owned(now, type_name, Value::Ready(value))
    }

    /// Creates a reference to the result of a function that the shell runs on this worker, and reports by
    /// [`RRefContext::function_finished`].
    ///
    /// PyTorch counts the creation as a separate user. Here the handle keeps the entry: a result that arrives
    /// after it was dropped is freed at once.
    pub(crate) fn create_here(
        &mut self,
        now: Instant,
        type_name: &str,
    ) -> Result<RRefId, UserError> {
        self.create_owned(now, type_name, Value::Running)
    }

    /// Creates a reference to a value that the program sets later by [`RRefContext::set_value`].
    pub(crate) fn create_promised(
        &mut self,
        now: Instant,
        type_name: &str,
    ) -> Result<RRefId, UserError> {
        self.create_owned(now, type_name, Value::Promised)
    }

    pub(super) fn create_owned(
        &mut self,
        now: Instant,
        type_name: &str,
        value: Value<V>,
    ) -> Result<RRefId, UserError> {
        if self.phase != Phase::Running {
            // An effect, because a destructor must not run under the caller's lock.
            if let Value::Ready(value) = value {
                self.effects.push(Effect::Free(value));
            }
            return Err(UserError::ShutDown);
        }
        let rref = self.mint.rref(self.me);
        let type_name = shared_name(cut(type_name, TYPE_NAME_BYTES_MAX));
        let mut owned = Owned::new(now, Some(type_name), value);
        owned.handles = 1;
        self.owned.insert(rref, Box::new(owned));
        Ok(rref)
    }

    /// Creates a reference to the result of a function on another worker. The message is sent with retries.
    ///
    /// # Errors
    /// [`UserError::ShutDown`]; [`UserError::OwnerIsHere`] if `owner` is this worker.
    pub(crate) fn create_remote(
        &mut self,
        owner: WorkerId,
        type_name: &str,
        function: Arc<str>,
        arguments: Bytes,
    ) -> Result<ForkId, UserError> {
        if self.phase != Phase::Running {
            return Err(UserError::ShutDown);
        }
        if owner == self.me {
            return Err(UserError::OwnerIsHere);
        }
        let (rref, fork) = (self.mint.rref(owner), self.mint.fork(owner));
        let type_name = shared_name(cut(type_name, TYPE_NAME_BYTES_MAX));
        let user = User {
            rref,
            owner,
            owner_incarnation: 0,
            type_name: Arc::clone(&type_name),
            parent: None,
            state: State::Creating,
            has_handle: true,
            children: 0,
            was_forked: false,
            has_timed_out: false,
        };
        self.users.insert(fork, Box::new(user));
        // Not in the outbox: a creation that is not answered is settled, not resent.
        self.effects.push(Effect::Send {
            to: owner,
            control: Control::Create(fork),
            message: Message::RemoteCall {
                rref,
                fork,
                type_name,
                function,
                arguments,
            },
        });
        Ok(fork)
    }

    /// Handles a creation by another worker.
    pub(super) fn receive_creation(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        call: Creation,
    ) -> Answer {
        let Creation {
            rref,
            fork,
            type_name,
            function,
            arguments,
        } = call;
        if self.tombstones.contains(rref.0) {
            return Answer::RemoteAccept;
        }
        if self.is_former(rref.0.created_on, rref.0.incarnation) {
            return Answer::Refused(format!("the creator of {rref} was lost").into());
        }
        let is_deleted = self.tombstones.contains(fork.0);
        match self.owned.get(&rref) {
            Some(owned) if !matches!(owned.value, Value::Uncreated) => {
                return if is_deleted || owned.forks.contains(fork) {
                    Answer::RemoteAccept
                } else {
                    Answer::Refused(format!("{rref} was created by another call").into())
                };
            }
            // Its only user was deleted: the creator has abandoned it and forked it to no worker.
            None if is_deleted => return Answer::RemoteAccept,
            _ => {}
        }
        let Some(owned) = self.entry(now, rref) else {
            return too_many();
        };
        owned.value = Value::Running;
        owned.type_name = Some(type_name);
        if !is_deleted {
            let holder = Holder::arrived(now, from, incarnation);
            owned.forks.add(fork, holder);
        }
        self.uncreated -= 1;
        self.effects.push(Effect::RunFunction {
            rref,
            from,
            function,
            arguments,
        });
        Answer::RemoteAccept
    }

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
            Delivery::Unknown(error) => State::Unsettled(error),
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
        user.has_timed_out = matches!(state, State::Unsettled(_));
        if let State::Unsettled(error) | State::Failed(error, Failure::Reporting) = &state {
            let message = Message::Abandon {
                rref: user.rref,
                fork,
                error: Arc::clone(error),
            };
            let owner = user.owner;
            user.state = state;
            self.send(owner, Control::Abandon(fork), message);
        } else {
            user.state = state;
        }
        self.notify(fork);
        self.settle_user(now, fork);
    }

    /// Handles the settlement of a creation that its creator has abandoned.
    pub(super) fn abandoned(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        (rref, fork): (RRefId, ForkId),
        error: Arc<str>,
    ) -> Answer {
        if self.tombstones.contains(rref.0) || self.tombstones.contains(fork.0) {
            return Answer::Abandoned;
        }
        let Some(owned) = self.entry(now, rref) else {
            return too_many();
        };
        match &owned.value {
            Value::Running | Value::Promised | Value::Ready(_) => return Answer::Created,
            Value::Failed { is_abandoned, .. } => {
                if !is_abandoned {
                    return Answer::Created;
                }
            }
            Value::Uncreated => {
                let value = Value::Failed {
                    error,
                    is_abandoned: true,
                };
                self.complete(rref, value);
            }
        }
        if let Some(owned) = self.owned.get_mut(&rref) {
            let holder = Holder::arrived(now, from, incarnation);
            owned.forks.add(fork, holder);
        }
        Answer::Abandoned
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
        let (State::Unsettled(error) | State::Failed(error, _)) = &user.state else {
            return;
        };
        let error = Arc::clone(error);
        user.state = match answer {
            Answer::Created => {
                user.has_timed_out = false;
                user.owner_incarnation = answered_by;
                State::Confirmed
            }
            Answer::Abandoned => State::Failed(error, Failure::Reported),
            _ => State::Failed(error, Failure::Unreported),
        };
        self.notify(fork);
        self.settle_user(now, fork);
    }

    /// The entry of a reference that was not freed, made if needed; `None` at the limit.
    pub(super) fn entry(&mut self, now: Instant, rref: RRefId) -> Option<&mut Owned<V>> {
        if !self.owned.contains_key(&rref) {
            let value = if self.is_former(rref.0.created_on, rref.0.incarnation) {
                Value::lost_creator(rref)
            } else if self.uncreated < UNCREATED_MAX {
                self.uncreated += 1;
                Value::Uncreated
            } else {
                return None;
            };
            let owned = Owned::new(now, None, value);
            self.owned.insert(rref, Box::new(owned));
        }
        self.owned.get_mut(&rref).map(|owned| &mut **owned)
    }
}

fn failed(error: Arc<str>, was_forked: bool) -> State {
    let failure = if was_forked {
        Failure::Reporting
    } else {
        Failure::Unreported
    };
    State::Failed(error, failure)
}

pub(super) fn too_many() -> Answer {
    Answer::Refused(
        format!("the limit of {UNCREATED_MAX} references that wait for their creation is reached")
            .into(),
    )
}
