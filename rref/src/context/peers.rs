//! Which process of each worker is the present one.

use std::time::Instant;

use rpc_agent::WorkerId;

use super::RRefContext;
use super::owner::{Arrival, Holder, Owned};
use super::user::State;
use crate::effect::Control;

/// How many former processes of a worker are remembered.
const FORMER_MAX: usize = 8;

/// Another worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// Of its process, once it was heard of.
    pub(super) incarnation: Option<u64>,
    /// Processes that were given up, the latest last. They are heard no more, even if they live.
    former: Vec<u64>,
    /// Given up, and no later process was heard of.
    is_lost: bool,
}

impl Peer {
    fn give_up(&mut self, incarnation: u64) {
        if self.former.contains(&incarnation) {
            return;
        }
        if self.former.len() == FORMER_MAX {
            self.former.remove(0);
        }
        self.former.push(incarnation);
    }
}

impl<V: Clone> RRefContext<V> {
    /// A worker gave a sign of life; `false` if it is of a process that was given up. A new process is the
    /// end of the one before.
    pub fn hear(&mut self, now: Instant, worker: WorkerId, incarnation: u64) -> bool {
        let known = self.peers.get(&worker).and_then(|peer| peer.incarnation);
        if known != Some(incarnation) {
            if self.is_former(worker, incarnation) {
                return false;
            }
            let peer = self.peers.entry(worker).or_default();
            peer.incarnation = Some(incarnation);
            peer.is_lost = false;
            if let Some(former) = known {
                peer.give_up(former);
                self.process_lost(now, worker, former);
            }
        }
        self.resend(now, worker);
        true
    }

    /// A process of a worker has ended, and a later one has its place. What was sent to the worker, and is
    /// not answered, may have gone to either: the present one answers for it, or is asked.
    fn process_lost(&mut self, now: Instant, worker: WorkerId, former: u64) {
        let is_its = |of: u64| of == former;
        self.lose_owner(now, worker, |user| {
            user.state == State::Confirmed && is_its(user.owner_incarnation)
        });
        self.release_forks_of(
            now,
            worker,
            |holder| holder.incarnation.is_some_and(is_its),
            is_its,
        );
        self.ask_for_forks_on(now, worker);
    }

    pub(super) fn is_former(&self, worker: WorkerId, incarnation: u64) -> bool {
        self.peers
            .get(&worker)
            .is_some_and(|peer| peer.former.contains(&incarnation))
    }

    /// Whether a process of a worker, 0 for the present one, was given up.
    pub(super) fn is_lost(&self, worker: WorkerId, incarnation: u64) -> bool {
        let is_lost = self.peers.get(&worker).is_some_and(|peer| peer.is_lost);
        self.is_former(worker, incarnation) || (incarnation == 0 && is_lost)
    }

    /// Which process of a worker was heard of last; none if that was given up.
    #[must_use]
    pub fn incarnation_of(&self, worker: WorkerId) -> Option<u64> {
        self.peers.get(&worker)?.incarnation
    }

    /// Whether a worker has anything to do with what is here: a value, a user, a message.
    #[must_use]
    pub fn has_part(&self, worker: WorkerId) -> bool {
        let holds = |owned: &Owned<V>| owned.forks.values().any(|holder| holder.worker == worker);
        self.users.values().any(|user| user.owner == worker)
            || self.children.values().any(|child| child.to == worker)
            || self.owned.values().any(holds)
            || self.waiting.values().any(|waiting| waiting.from == worker)
            || self
                .outbox
                .sendings
                .values()
                .any(|sending| sending.to == worker)
    }

    /// A worker is dead: not a connection that was lost, which may be made again. Its users are released,
    /// and the users of its values fail. `incarnation` is its last process, where the transport knows that:
    /// it counts as given up even if nothing was heard of it here, so that a late message of it is not taken
    /// for that of a new one.
    ///
    /// If it lives all the same, it is not heard any more. A later process of the same worker is.
    pub fn peer_lost(&mut self, now: Instant, worker: WorkerId, incarnation: Option<u64>) {
        let known = self.incarnation_of(worker);
        if let Some(lost) = incarnation
            && known.is_some_and(|known| known != lost)
            && self.is_former(worker, lost)
        {
            // Its successor was heard of before the news of its end.
            return;
        }
        let peer = self.peers.entry(worker).or_default();
        let heard = peer.incarnation.take();
        peer.is_lost = true;
        for lost in [heard, incarnation].into_iter().flatten() {
            peer.give_up(lost);
        }
        let is_its = |of: u64| match (heard, incarnation) {
            (None, None) => true,
            (heard, given) => Some(of) == heard || Some(of) == given,
        };
        self.lose_owner(now, worker, |user| {
            // Who still waits for an answer waits in vain, whichever process it asked.
            let of = user.owner_incarnation;
            user.state != State::Confirmed || of == 0 || is_its(of)
        });
        self.drop_messages_to(worker);
        // What is being encoded has yet to be sent, and a later process may be there by then.
        let is_sent = |arrival: Arrival| arrival != Arrival::Encoding;
        for fork in self.children_where(|child| child.to == worker && is_sent(child.arrival)) {
            self.outbox.remove(Control::Query(fork));
            self.release_child(now, fork);
        }
        let is_released =
            |holder: &Holder| is_sent(holder.arrival) && holder.incarnation.is_none_or(is_its);
        self.release_forks_of(now, worker, is_released, is_its);
    }
}
