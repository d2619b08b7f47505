//! How a parent learns whether a fork has arrived: it sends a probe to the receiver, and then a query to the owner.

use std::time::Instant;

use super::effect::Control;
use super::holders::{Arrival, Holder};
use super::state::RRefContext;
use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, Message};

/// The most probes under way at a time; stalled ones do not count.
pub(super) const PROBES_MAX: usize = 1024;

impl<V: Clone> RRefContext<V> {
    /// Asks the receiver of a fork whether it has arrived.
    pub(super) fn probe(&mut self, now: Instant, rref: RRefId, fork: ForkId) {
        let control = Control::Probe(fork);
        if self.outbox.contains(control) {
            return;
        }
        let to = match self.children.get(&fork) {
            Some(child) => Some(child.to),
            None => self.holder(rref, fork).map(|holder| holder.worker),
        };
        match to {
            // A message to this worker itself is decoded here or never.
            Some(to) if to != self.me => {
                self.set_arrival(rref, fork, Arrival::Asked);
                self.send(to, control, Message::Probe { rref, fork });
            }
            Some(_) if !self.users.contains_key(&fork) => {
                self.tombstones.insert(now, fork.0);
                self.fork_not_received(now, rref, fork);
            }
            _ => self.set_arrival(rref, fork, Arrival::UnderWay { since: now }),
        }
    }

    pub(super) fn probe_answered(
        &mut self,
        now: Instant,
        rref: RRefId,
        fork: ForkId,
        answer: &Answer,
    ) {
        match answer {
            // It registers at the owner, and then releases its parent.
            Answer::Received if self.children.contains_key(&fork) => {
                self.set_arrival(rref, fork, Arrival::UnderWay { since: now });
            }
            Answer::Received => self.set_arrival(rref, fork, Arrival::SENT),
            Answer::NotReceived => self.fork_not_received(now, rref, fork),
            _ => self.set_arrival(rref, fork, Arrival::UnderWay { since: now }),
        }
    }

    /// Sends a query to the owner: whether it has a child whose worker does not answer.
    pub(super) fn query(&mut self, fork: ForkId) {
        let Some(child) = self.children.get(&fork) else {
            return;
        };
        let Some(parent) = self.users.get(&child.parent) else {
            return;
        };
        let (owner, rref) = (parent.owner, parent.rref);
        if child.to != owner && !self.outbox.contains(Control::Query(fork)) {
            let control = Control::Query(fork);
            self.send(owner, control, Message::Query { rref, fork });
        }
    }

    /// A fork has not arrived and never will, or was deleted.
    pub(super) fn fork_not_received(&mut self, now: Instant, rref: RRefId, fork: ForkId) {
        if self.children.contains_key(&fork) {
            self.release_child(now, fork);
        } else if self.holder(rref, fork).is_some() {
            self.user_deleted(now, rref, fork);
        }
    }

    pub(super) fn holder(&mut self, rref: RRefId, fork: ForkId) -> Option<&mut Holder> {
        self.owned.get_mut(&rref)?.forks.get_mut(fork)
    }

    pub(super) fn arrival(&mut self, rref: RRefId, fork: ForkId) -> Option<Arrival> {
        match self.children.get(&fork) {
            Some(child) => Some(child.arrival),
            None => self.holder(rref, fork).map(|holder| holder.arrival),
        }
    }

    /// Sets whether a child, or a user of a value here, has arrived.
    pub(super) fn set_arrival(&mut self, rref: RRefId, fork: ForkId, arrival: Arrival) {
        let place = match self.children.get_mut(&fork) {
            Some(child) => Some(&mut child.arrival),
            None => self.holder(rref, fork).map(|holder| &mut holder.arrival),
        };
        let Some(before) = place.map(|place| std::mem::replace(place, arrival)) else {
            return;
        };
        self.forget_arrival(before, rref, fork);
        if let Arrival::UnderWay { since } = arrival {
            self.under_way.insert((since, rref, fork));
        }
    }

    /// Removes what was scheduled or sent for a fork that had not arrived.
    pub(super) fn forget_arrival(&mut self, arrival: Arrival, rref: RRefId, fork: ForkId) {
        match arrival {
            Arrival::UnderWay { since } => {
                self.under_way.remove(&(since, rref, fork));
            }
            Arrival::Asked => {
                self.outbox.remove(Control::Probe(fork));
            }
            Arrival::Encoding | Arrival::InCall | Arrival::Arrived { .. } => {}
        }
    }
}
