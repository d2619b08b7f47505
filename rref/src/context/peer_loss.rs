//! The loss of another worker: its process has exited, or another process has replaced it.

use std::time::Instant;

use rpc_agent::WorkerId;

use super::effect::RequestToken;
use super::effect::{Control, Delivery};
use super::error::FetchError;
use super::holders::{Arrival, Holder};
use super::state::RRefContext;
use super::user::{Orphan, State, User};
use super::values::{Owned, Value, Waiting};
use crate::id::{ForkId, RRefId};
use crate::protocol::Answer;

/// The effect of the report that a process has exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossReport {
    /// A message of another process of the worker has arrived since the report was made: make it again.
    Outdated,
    /// The worker is connected as a later process.
    Replaced,
    /// The worker is lost.
    Lost {
        /// Whether it owned, used or was sent anything here.
        was_involved: bool,
    },
}

impl<V: Clone> RRefContext<V> {
    /// A process of a worker has ended. `connected` is the process that the transport was last connected to,
    /// read after [`RRefContext::incarnation_of`] was `heard`.
    ///
    /// The report is discarded if a message of another process has arrived in between, because it does not concern
    /// that process.
    pub(crate) fn process_ended(
        &mut self,
        now: Instant,
        worker: WorkerId,
        incarnation: Option<u64>,
        connected: Option<u64>,
        heard: Option<u64>,
    ) -> LossReport {
        if self.incarnation_of(worker) != heard {
            return LossReport::Outdated;
        }
        if connected != incarnation {
            if let Some(connected) = connected {
                self.heard_from(now, worker, connected);
            }
            return LossReport::Replaced;
        }
        let was_involved = self.is_involved(worker);
        self.peer_lost(now, worker, incarnation);
        LossReport::Lost { was_involved }
    }

    /// A message of a worker's process has arrived. Returns `false` if that process was declared dead. A new process
    /// implies the end of the one before.
    pub(crate) fn heard_from(&mut self, now: Instant, worker: WorkerId, incarnation: u64) -> bool {
        let known = self.peers.get(&worker).and_then(|peer| peer.incarnation);
        if known != Some(incarnation) {
            if self.is_former(worker, incarnation) {
                return false;
            }
            let peer = self.peers.entry(worker).or_default();
            peer.incarnation = Some(incarnation);
            peer.is_lost = false;
            if let Some(former) = known {
                peer.declare_dead(former);
                self.process_lost(now, worker, former);
            }
        }
        self.resend(worker);
        true
    }

    /// A worker is dead: its users are released, and users of its values fail.
    ///
    /// `incarnation` is its last process, if the transport has it. That process is refused from now on, even if it
    /// lives or has never sent a message; a later process of the worker is accepted.
    pub(crate) fn peer_lost(&mut self, now: Instant, worker: WorkerId, incarnation: Option<u64>) {
        let known = self.incarnation_of(worker);
        if let Some(lost) = incarnation
            && known.is_some_and(|known| known != lost)
            && self.is_former(worker, lost)
        {
            // A message of its successor arrived before the report of its end.
            return;
        }
        let peer = self.peers.entry(worker).or_default();
        let heard = peer.incarnation.take();
        peer.is_lost = true;
        for lost in [heard, incarnation].into_iter().flatten() {
            peer.declare_dead(lost);
        }
        let is_its = |of: u64| match (heard, incarnation) {
            (None, None) => true,
            (heard, given) => Some(of) == heard || Some(of) == given,
        };
        self.lose_owner(now, worker, |user| {
            // An open creation or registration will not be answered, whichever process it was sent to.
            let of = user.owner_incarnation;
            user.state != State::Confirmed || of == 0 || is_its(of)
        });
        self.drop_messages_to(worker);
        // A message that is still being encoded may go to a later process.
        let is_sent = |arrival: Arrival| arrival != Arrival::Encoding;
        for fork in self.children_where(|child| child.to == worker && is_sent(child.arrival)) {
            self.outbox.remove(Control::Query(fork));
            self.release_child(now, fork);
        }
        let is_released =
            |holder: &Holder| is_sent(holder.arrival) && holder.registered_by().is_none_or(is_its);
        self.release_forks_of(now, worker, is_released, is_its);
    }

    /// The process of a worker that sent the last message; `None` if it was declared dead.
    #[must_use]
    pub(crate) fn incarnation_of(&self, worker: WorkerId) -> Option<u64> {
        self.peers.get(&worker)?.incarnation
    }

    /// Whether a worker owns, uses, or is sent anything here.
    #[must_use]
    pub(crate) fn is_involved(&self, worker: WorkerId) -> bool {
        let holds = |owned: &Owned<V>| {
            owned
                .forks
                .iter()
                .any(|(_, holder)| holder.worker == worker)
        };
        self.users.values().any(|user| user.owner == worker)
            || self.children.values().any(|child| child.to == worker)
            || self.owned.values().any(|owned| holds(owned))
            || self.waiting.values().any(|waiting| waiting.from == worker)
            || self
                .outbox
                .unanswered
                .values()
                .any(|sending| sending.to == worker)
    }

    pub(super) fn is_former(&self, worker: WorkerId, incarnation: u64) -> bool {
        self.peers
            .get(&worker)
            .is_some_and(|peer| peer.former.contains(&incarnation))
    }

    /// Whether a process of a worker, 0 for the present one, was declared dead.
    pub(super) fn is_lost(&self, worker: WorkerId, incarnation: u64) -> bool {
        let is_lost = self.peers.get(&worker).is_some_and(|peer| peer.is_lost);
        self.is_former(worker, incarnation) || (incarnation == 0 && is_lost)
    }

    /// A later process has taken a worker's place. Unanswered messages may have gone to either: answers of the
    /// present one count, and forks are probed again.
    pub(super) fn process_lost(&mut self, now: Instant, worker: WorkerId, former: u64) {
        let is_its = |of: u64| of == former;
        self.lose_owner(now, worker, |user| {
            user.state == State::Confirmed && is_its(user.owner_incarnation)
        });
        self.release_forks_of(
            now,
            worker,
            |holder| holder.registered_by().is_some_and(is_its),
            is_its,
        );
        self.reprobe_forks_on(now, worker);
    }

    /// Releases the users of a dead process, drops its requests, and fails what it would have created.
    pub(super) fn release_forks_of(
        &mut self,
        now: Instant,
        worker: WorkerId,
        is_released: impl Fn(&Holder) -> bool,
        is_its: impl Fn(u64) -> bool,
    ) {
        let asked = |(&token, waiting): (_, &Waiting)| (waiting.from == worker).then_some(token);
        let tokens: Vec<RequestToken> = self.waiting.iter().filter_map(asked).collect();
        for token in tokens {
            self.fail_fetch(now, token, FetchError::PeerDead(worker));
        }
        let rrefs: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in rrefs {
            let Some(owned) = self.owned.get(&rref) else {
                continue;
            };
            let its = owned
                .forks
                .iter()
                .filter(|(_, holder)| holder.worker == worker && is_released(holder));
            let its: Vec<ForkId> = its.map(|(fork, _)| fork).collect();
            let is_uncreated = matches!(owned.value, Value::Uncreated);
            for fork in its {
                self.tombstones.insert(now, fork.0);
                self.remove_holder(rref, fork);
            }
            if is_uncreated && rref.0.created_on == worker && is_its(rref.0.incarnation) {
                self.complete(rref, Value::lost_creator(rref));
            }
            self.settle_owned(now, rref);
        }
    }

    /// Schedules probes of the forks on a worker that may have arrived at its former process.
    pub(super) fn reprobe_forks_on(&mut self, now: Instant, worker: WorkerId) {
        let mut unclear = Vec::new();
        for (&rref, owned) in &self.owned {
            let forks = owned
                .forks
                .iter()
                .filter(|(_, holder)| holder.worker == worker && holder.arrival == Arrival::SENT);
            unclear.extend(forks.map(|(fork, _)| (rref, fork)));
        }
        for (rref, fork) in unclear {
            self.set_arrival(rref, fork, Arrival::UnderWay { since: now });
        }
    }

    /// Fails the users of a dead owner's values. The owner receives no message.
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
            let orphans = Orphan {
                owner,
                rref: user.rref,
                fork,
            };
            match before {
                State::Creating => {
                    self.orphans.insert(Control::Create(fork), orphans);
                }
                State::Requesting if !self.outbox.is_stalled(Control::ForkRequest(fork)) => {
                    self.orphans.insert(Control::ForkRequest(fork), orphans);
                }
                _ => {}
            }
            let parent = user.parent.filter(|_| before == State::Requesting);
            self.notify(fork);
            // The parent may be deleted, and may not know of the loss yet.
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

    /// The message of an orphaned user has ended. If a later process may have registered the user, the user is
    /// deleted there, even if no message of that process has arrived yet, because the transport may have connected to
    /// it first. Without such a process, the next report of the loss removes the deletion.
    pub(super) fn orphan_ended(&mut self, now: Instant, orphans: Orphan, delivery: &Delivery) {
        let Orphan { owner, rref, fork } = orphans;
        let may_be_known = match delivery {
            Delivery::Answered {
                incarnation,
                answer: Answer::Ack | Answer::RemoteAccept,
            } => self.heard_from(now, owner, *incarnation),
            Delivery::Unknown(_) => true,
            _ => false,
        };
        if may_be_known {
            self.send_delete(owner, rref, fork);
        }
    }
}
