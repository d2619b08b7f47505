//! Which process of each worker is the present one.

use std::time::Instant;

use rpc_agent::WorkerId;

use super::RRefContext;
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

impl<V: Clone> RRefContext<V> {
    /// A worker gave a sign of life; `false` if it is of a process that was given up. A new process is the
    /// end of the one before.
    pub(super) fn hear(&mut self, now: Instant, worker: WorkerId, incarnation: u64) -> bool {
        let known = self.peers.get(&worker).and_then(|peer| peer.incarnation);
        if known != Some(incarnation) {
            if self.is_former(worker, incarnation) {
                return false;
            }
            if known.is_some() {
                self.peer_lost(now, worker);
            }
            let peer = self.peers.entry(worker).or_default();
            peer.incarnation = Some(incarnation);
            peer.is_lost = false;
        }
        self.resend(now, worker);
        true
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

    /// A worker is dead: not a connection that was lost, which may be made again. Its users are released,
    /// and the users of its values fail.
    ///
    /// If it lives all the same, it is not heard any more. A later process of the same worker is. To be
    /// told again when a connection to it ends later, and if messages to it stall: who had not heard of a
    /// process before its end takes a late message of it for that of a new one, and a late message of
    /// another worker may name it.
    pub fn peer_lost(&mut self, now: Instant, worker: WorkerId) {
        let peer = self.peers.entry(worker).or_default();
        let incarnation = peer.incarnation.take();
        peer.is_lost = true;
        if let Some(incarnation) = incarnation {
            if peer.former.len() == FORMER_MAX {
                peer.former.remove(0);
            }
            peer.former.push(incarnation);
        }
        self.drop_messages_to(worker);
        self.lose_owner(now, worker, incarnation);
        for fork in self.children_where(|child| child.to == worker) {
            self.outbox.remove(Control::Query(fork));
            self.release_child(now, fork);
        }
        self.release_forks_of(now, worker, incarnation);
    }
}
