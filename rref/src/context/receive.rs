//! How the context handles a message from another worker, or the answer to its own message.

use std::time::Instant;

use rpc_agent::WorkerId;

use super::creation::Creation;
use super::effect::{Control, Delivery, Effect, RequestToken};
use super::error::FetchError;
use super::state::RRefContext;
use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, Message};

impl<V: Clone> RRefContext<V> {
    /// Receives a request, which [`Effect::Reply`] or [`Effect::AnswerFetch`] answers, now or later. `incarnation` is
    /// the sender's, from its message.
    ///
    /// [`Message::Call`] is answered with the value, like a fetch. The shell keeps the function to run on it.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        token: RequestToken,
        deadline: Option<Instant>,
        message: Message,
    ) {
        let is_heard = self.heard_from(now, from, incarnation);
        let answer = match message {
            Message::Fetch { rref } | Message::Call { rref, .. } => {
                if is_heard {
                    self.fetch_for(now, token, from, rref, deadline);
                } else {
                    let result = Err(FetchError::PeerDead(from));
                    self.effects.push(Effect::AnswerFetch { token, result });
                }
                return;
            }
            message if is_heard => self.handle(now, from, incarnation, message),
            _ => Answer::Refused(FetchError::PeerDead(from).to_string().into()),
        };
        self.effects.push(Effect::Reply { token, answer });
    }

    pub(super) fn handle(
        &mut self,
        now: Instant,
        from: WorkerId,
        incarnation: u64,
        message: Message,
    ) -> Answer {
        match message {
            Message::RemoteCall {
                rref,
                fork,
                type_name,
                function,
                arguments,
            } => {
                if !is_by(rref, fork, from, incarnation) {
                    return unknown_id(rref, fork);
                }
                let call = Creation {
                    rref,
                    fork,
                    type_name,
                    function,
                    arguments,
                };
                self.receive_creation(now, from, incarnation, call)
            }
            // Answered by `receive`, as they wait for a value.
            Message::Fetch { rref } | Message::Call { rref, .. } => {
                Answer::Refused(format!("{rref}: not a control message").into())
            }
            Message::ForkRequest { rref, fork }
                if self.is_unissued(rref, fork) || fork.0.named_for() != Some(from) =>
            {
                unknown_id(rref, fork)
            }
            Message::Probe { rref, fork } | Message::Query { rref, fork }
                if self.is_unissued(rref, fork) || fork.0.created_on != from =>
            {
                unknown_id(rref, fork)
            }
            Message::ForkRequest { rref, fork } => {
                self.fork_requested(now, from, incarnation, rref, fork)
            }
            Message::ChildAccept { fork } => {
                if self
                    .children
                    .get(&fork)
                    .is_some_and(|child| child.to == from)
                {
                    self.release_child(now, fork);
                }
                Answer::Ack
            }
            Message::UserDelete { forks } => {
                self.users_deleted(now, from, forks);
                Answer::Ack
            }
            Message::Abandon { rref, fork, .. } if !is_by(rref, fork, from, incarnation) => {
                unknown_id(rref, fork)
            }
            Message::Abandon { rref, fork, error } => {
                self.abandoned(now, from, incarnation, (rref, fork), error)
            }
            Message::Probe { fork, .. } => self.probed(now, fork),
            Message::Query { rref, fork } => self.queried(rref, fork),
        }
    }

    /// Another worker has deleted these users.
    fn users_deleted(&mut self, now: Instant, from: WorkerId, forks: Vec<(RRefId, ForkId)>) {
        for (rref, fork) in forks {
            // By its holder or by its maker.
            let is_its = fork.0.named_for() == Some(from) || fork.0.created_on == from;
            if is_its && !self.is_unissued(rref, fork) {
                self.user_deleted(now, rref, fork);
            }
        }
    }

    /// Answers the probe of a parent. A fork that has not arrived here is refused from now on.
    fn probed(&mut self, now: Instant, fork: ForkId) -> Answer {
        let is_accepting = self.outbox.contains(Control::ChildAccept(fork));
        if self.users.contains_key(&fork) || is_accepting {
            Answer::Received
        } else {
            self.tombstones.insert(now, fork.0);
            Answer::NotReceived
        }
    }

    /// Answers the query of a parent about a fork of a value that this worker owns.
    fn queried(&self, rref: RRefId, fork: ForkId) -> Answer {
        let owned = self.owned.get(&rref);
        if owned.is_some_and(|owned| owned.forks.contains(fork)) {
            Answer::Known
        } else if self.tombstones.contains(fork.0) || self.tombstones.contains(rref.0) {
            Answer::Deleted
        } else {
            Answer::Unknown
        }
    }

    /// A message of [`Effect::Send`] was answered, or its retries are exhausted.
    pub(crate) fn control_finished(
        &mut self,
        now: Instant,
        control: Control,
        mut delivery: Delivery,
    ) {
        if let Some(orphans) = self.orphans.remove(&control) {
            return self.orphan_ended(now, orphans, &delivery);
        }
        let to = match control {
            Control::Create(fork) => self.users.get(&fork).map(|user| user.owner),
            _ => self
                .outbox
                .unanswered
                .get(&control)
                .map(|sending| sending.to),
        };
        let Some(to) = to else {
            return;
        };
        if self.outbox.is_stalled(control) {
            return;
        }
        let mut answered_by = 0;
        if let Delivery::Answered { incarnation, .. } = delivery {
            answered_by = incarnation;
            if !self.heard_from(now, to, incarnation) {
                // No accepted process will answer: as if it had been sent before the loss.
                if self.incarnation_of(to).is_none() {
                    return self.peer_lost(now, to, None);
                }
                // A later process exists, which has not answered yet.
                let why = FetchError::PeerDead(to).to_string();
                delivery = Delivery::Unknown(why.into());
            }
        }
        if let Control::Create(fork) = control {
            self.creation_finished(now, fork, delivery);
            return;
        }
        let answer = match delivery {
            Delivery::Answered { answer, .. } => answer,
            Delivery::Refused(reason) => Answer::Refused(reason),
            Delivery::NotDelivered(_) | Delivery::Unknown(_) => {
                self.stall(now, control);
                if let Control::Probe(fork) = control {
                    self.query(fork);
                }
                return;
            }
        };
        // `heard_from` has removed it if the answer is from a new process.
        let Some(sending) = self.outbox.remove(control) else {
            return;
        };
        match control {
            Control::ForkRequest(fork) => {
                self.fork_request_answered(now, fork, answered_by, answer);
            }
            Control::Abandon(fork) => self.abandon_answered(now, fork, answered_by, answer),
            Control::Probe(fork) => {
                if let Message::Probe { rref, .. } = sending.message {
                    self.probe_answered(now, rref, fork, &answer);
                }
                // The receiver refuses this worker; the owner may know the child.
                if let Answer::Refused(_) = answer {
                    self.query(fork);
                }
            }
            Control::Query(fork) => {
                if matches!(answer, Answer::Known | Answer::Deleted) {
                    self.release_child(now, fork);
                }
            }
            Control::Deletes { owner, .. } => self.send_deletes(owner),
            Control::ChildAccept(_) | Control::Create(_) => {}
        }
    }

    /// Whether one of these ids is still to be given by this process, so that no peer can have it.
    pub(super) fn is_unissued(&self, rref: RRefId, fork: ForkId) -> bool {
        self.mint.is_unissued(rref.0) || self.mint.is_unissued(fork.0)
    }
}

/// Whether the worker that requests a creation has named it.
fn is_by(rref: RRefId, fork: ForkId, from: WorkerId, incarnation: u64) -> bool {
    [rref.0, fork.0]
        .iter()
        .all(|id| id.created_on == from && id.incarnation == incarnation)
}

fn unknown_id(rref: RRefId, fork: ForkId) -> Answer {
    let what = format!("{rref} or {fork} was not given by the worker in its id");
    Answer::Refused(what.into())
}
