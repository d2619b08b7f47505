//! How a reference is sent to another worker, received, registered at its owner, and released by its parent.

use std::sync::Arc;
use std::time::Instant;

use rpc_agent::WorkerId;

use super::creation::too_many;
use super::effect::{Carrier, Control, Handle, Received};
use super::error::{ForkError, ReceiveError, UserError};
use super::holders::{Arrival, Holder};
use super::state::{Phase, RRefContext};
use super::user::{Child, State, User};
use super::values::UNCREATED_MAX;
use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, ForkData, Message};

/// The most messages without an answer. At the limit, received references are refused.
pub(super) const UNANSWERED_MAX: usize = 1 << 20;

impl<V: Clone> RRefContext<V> {
    /// Makes a user for another worker; its data go into a message to that worker. The caller then calls
    /// [`commit_fork`](Self::commit_fork) or [`undo_fork`](Self::undo_fork).
    pub(crate) fn fork(
        &mut self,
        now: Instant,
        handle: Handle,
        to: WorkerId,
    ) -> Result<ForkData, ForkError> {
        if self.phase != Phase::Running {
            return Err(UserError::ShutDown.into());
        }
        match handle {
            Handle::Owner(rref) => {
                let Some(owned) = self.owned.get_mut(&rref).filter(|owned| owned.handles > 0)
                else {
                    return Err(ForkError::Deleted);
                };
                let fork = self.mint.fork(to);
                let holder = Holder {
                    worker: to,
                    since: now,
                    arrival: Arrival::Encoding,
                };
                owned.forks.add(fork, holder);
                Ok(ForkData {
                    owner: self.me,
                    owner_incarnation: self.incarnation,
                    rref,
                    fork,
                    parent: self.me,
                    type_name: owned.type_name.clone().unwrap_or_default(),
                })
            }
            Handle::User(parent) => {
                let Some(user) = self.users.get_mut(&parent).filter(|user| user.has_handle) else {
                    return Err(ForkError::Deleted);
                };
                if let Some(error) = user.error() {
                    return Err(error.into());
                }
                user.children += 1;
                user.was_forked = true;
                let fork = self.mint.fork(to);
                let known = self
                    .peers
                    .get(&user.owner)
                    .and_then(|peer| peer.incarnation);
                let child = Child {
                    parent,
                    to,
                    arrival: Arrival::Encoding,
                };
                self.children.insert(fork, child);
                Ok(ForkData {
                    owner: user.owner,
                    owner_incarnation: match user.owner_incarnation {
                        0 => known.unwrap_or(0),
                        incarnation => incarnation,
                    },
                    rref: user.rref,
                    fork,
                    parent: self.me,
                    type_name: Arc::clone(&user.type_name),
                })
            }
        }
    }

    /// The message with this fork is handed to the transport.
    ///
    /// The outcome of a call is reported by [`fork_arrived`](Self::fork_arrived), [`undo_fork`](Self::undo_fork) or
    /// [`fork_outcome_unknown`](Self::fork_outcome_unknown). A creation is answered before its references are
    /// received, so its acceptance is reported by this with [`Carrier::Answer`].
    pub(crate) fn commit_fork(&mut self, now: Instant, data: &ForkData, carrier: Carrier) {
        let before = self.arrival(data.rref, data.fork);
        if matches!(before, Some(Arrival::Encoding | Arrival::InCall)) {
            let arrival = match carrier {
                Carrier::Call => Arrival::InCall,
                Carrier::Answer => Arrival::UnderWay { since: now },
            };
            self.set_arrival(data.rref, data.fork, arrival);
        }
    }

    /// The receiver has answered the call with this fork, so it has received the fork. A child's registration is
    /// still awaited.
    pub(crate) fn fork_arrived(&mut self, now: Instant, data: &ForkData) {
        let (rref, fork) = (data.rref, data.fork);
        if self.holder(rref, fork).is_some() {
            self.set_arrival(rref, fork, Arrival::SENT);
        } else if self.arrival(rref, fork) == Some(Arrival::InCall) {
            self.set_arrival(rref, fork, Arrival::UnderWay { since: now });
        }
    }

    /// The message with this fork was not made, or certainly not delivered.
    pub(crate) fn undo_fork(&mut self, now: Instant, data: &ForkData) {
        self.fork_not_received(now, data.rref, data.fork);
    }

    /// The outcome of the message with this fork is unknown: its receiver is probed.
    pub(crate) fn fork_outcome_unknown(&mut self, now: Instant, data: &ForkData) {
        self.probe(now, data.rref, data.fork);
    }

    /// Receives a reference of a message.
    pub(crate) fn receive_fork(
        &mut self,
        now: Instant,
        data: &ForkData,
    ) -> Result<Received, ReceiveError> {
        let &ForkData {
            owner,
            owner_incarnation,
            rref,
            fork,
            parent,
            ref type_name,
        } = data;
        if self.phase != Phase::Running {
            return Err(ReceiveError::ShutDown);
        }
        if self.is_unissued(rref, fork) || fork.0.created_on != parent {
            return Err(ReceiveError::UnknownId(fork));
        }
        if self.tombstones.contains(fork.0) || self.users.contains_key(&fork) {
            return Err(ReceiveError::ReceivedBefore(fork));
        }
        // Receiving it sends a message.
        if parent != self.me && self.outbox.unanswered.len() >= UNANSWERED_MAX {
            return Err(ReceiveError::TooManyMessages {
                max: UNANSWERED_MAX,
            });
        }
        if owner == self.me {
            if owner_incarnation != self.incarnation && owner_incarnation != 0 {
                return Err(ReceiveError::OwnerLost(owner));
            }
            self.receive_own(now, data)?;
            return Ok(Received {
                handle: Handle::Owner(rref),
                is_confirmed: true,
            });
        }
        if self.is_lost(owner, owner_incarnation) {
            return Err(ReceiveError::OwnerLost(owner));
        }
        let is_confirmed = parent == owner;
        let user = User {
            rref,
            owner,
            owner_incarnation,
            type_name: Arc::clone(type_name),
            parent: Some(parent),
            state: if is_confirmed {
                State::Confirmed
            } else {
                State::Requesting
            },
            has_handle: true,
            children: 0,
            was_forked: false,
            has_timed_out: false,
        };
        self.users.insert(fork, Box::new(user));
        if !is_confirmed {
            let control = Control::ForkRequest(fork);
            self.send(owner, control, Message::ForkRequest { rref, fork });
        }
        Ok(Received {
            handle: Handle::User(fork),
            is_confirmed,
        })
    }

    /// Receives a reference at its owner, perhaps before its creation.
    pub(super) fn receive_own(
        &mut self,
        now: Instant,
        data: &ForkData,
    ) -> Result<(), ReceiveError> {
        let (rref, me) = (data.rref, self.me);
        if self.tombstones.contains(rref.0) {
            return Err(ReceiveError::Deleted(rref));
        }
        let Some(owned) = self.entry(now, rref) else {
            return Err(ReceiveError::TooMany { max: UNCREATED_MAX });
        };
        let ours = owned
            .type_name
            .get_or_insert_with(|| data.type_name.clone());
        if *ours != data.type_name {
            return Err(ReceiveError::TypeMismatch {
                rref,
                ours: Arc::clone(ours),
                theirs: Arc::clone(&data.type_name),
            });
        }
        owned.handles += 1;
        if data.parent == me {
            self.remove_holder(rref, data.fork);
        } else {
            // The fork never becomes a user. It has kept its parent alive.
            self.send_child_accept(now, data.parent, data.fork);
        }
        self.tombstones.insert(now, data.fork.0);
        Ok(())
    }

    /// Registers a user that another worker has received.
    pub(super) fn fork_requested(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        rref: RRefId,
        fork: ForkId,
    ) -> Answer {
        // A late copy: the user was registered and deleted.
        if self.tombstones.contains(fork.0) {
            return Answer::Ack;
        }
        if self.tombstones.contains(rref.0) {
            return Answer::Refused("its value has been deleted".into());
        }
        let Some(owned) = self.entry(now, rref) else {
            return too_many();
        };
        let holder = Holder::arrived(now, from, incarnation);
        owned.forks.add(fork, holder);
        Answer::Ack
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
            // A new process of the owner has no such value, and must forget the registration.
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
            self.send_delete(owner, rref, fork);
        }
        self.notify(fork);
        // Registered or refused: the parent may be deleted.
        if let Some(parent) = parent {
            self.send_child_accept(now, parent, fork);
        }
        self.settle_user(now, fork);
    }

    /// Removes a child that no longer needs its parent.
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
}
