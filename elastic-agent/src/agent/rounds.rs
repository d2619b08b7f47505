//! The last rounds of this node, and what their stores say.

use elastic_rendezvous::{RendezvousHandler, RendezvousInfo, end_entry, open_round};

use crate::exit_barrier;
use crate::job_end;
use crate::old_round;
use crate::round::Facts;

/// The last round and the one before, where another node may have left the reason for which it ended the job: it may do
/// so when this node is in the next round already.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    newest_first: Vec<RendezvousInfo>,
    /// The number of the last round with a relay, and the relay's port.
    relay_port: Option<(i64, u16)>,
}

impl Rounds {
    const KEPT: usize = 2;

    pub(super) fn add(&mut self, round: RendezvousInfo) {
        self.newest_first.insert(0, round);
    }

    /// Forgets the rounds before those two, and removes their keys if their stores are not the current round's.
    pub(super) fn forget_old(&mut self, handler: &dyn RendezvousHandler) {
        let kept = self.newest_first.len().min(Self::KEPT);
        let old = self.newest_first.split_off(kept);
        let Some(current) = self.current().filter(|_| handler.has_store_per_round()) else {
            return;
        };
        if old.iter().all(|old| old_round::forget(old, current)) {
            old_round::forget_departed(handler, current);
        }
    }

    pub(super) fn current(&self) -> Option<&RendezvousInfo> {
        self.newest_first.first()
    }

    /// The port of the relay that this node had in the round: a node of a static rendezvous starts its workers again
    /// without the others.
    pub(super) fn relay_port_in(&self, round: i64) -> Option<u16> {
        self.relay_port
            .filter(|(number, _)| *number == round)
            .map(|(_, port)| port)
    }

    pub(super) const fn set_relay_port(&mut self, round: i64, port: u16) {
        self.relay_port = Some((round, port));
    }

    /// Why another node ended the job; `None` if none did.
    pub(super) fn why_job_ended(&self) -> Option<String> {
        self.newest_first
            .iter()
            .take(Self::KEPT)
            .find_map(|round| job_end::read(&*round.store))
    }

    /// How many nodes of the round have finished; `None` if its store does not answer.
    pub(super) fn finished(&self) -> Option<usize> {
        exit_barrier::checked_in(&*self.current()?.store).ok()
    }

    /// Lets other nodes enter the round. A failure is logged: then nodes that come wait until all restart.
    pub(super) fn open(&self) {
        if let Some(Err(error)) = self.current().map(open_round) {
            log::warn!("no other node can enter the round: {error}");
        }
    }

    pub(super) fn end_entry(&self) {
        if let Some(Err(error)) = self.current().map(end_entry) {
            log::warn!("cannot tell other nodes that the round is about to end: {error}");
        }
    }

    pub(super) fn facts(&self, has_store_per_round: bool) -> Facts {
        let store = self.current().filter(|_| has_store_per_round);
        Facts {
            job_end: self.why_job_ended(),
            is_any_stuck: store.is_some_and(|round| job_end::is_any_stuck(&*round.store)),
            finished: self.finished().unwrap_or(0),
        }
    }

    /// Counts this node among those whose workers are stuck; true for the first.
    pub(super) fn report_stuck(&self) -> bool {
        let Some(round) = self.current() else {
            return true;
        };
        job_end::report_stuck(&*round.store).unwrap_or_else(|error| {
            log::warn!("cannot tell the other nodes that the workers are stuck: {error}");
            true
        })
    }

    pub(super) fn publish_end(&self, host: &str, reason: &str) {
        let Some(round) = self.current() else {
            return;
        };
        if let Err(error) = job_end::publish(&*round.store, host, reason) {
            log::warn!("cannot tell the other nodes why the job ends: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use c10d_store::{HashStore, Store};
    use elastic_rendezvous::{
        C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousSettings,
    };

    use super::*;
    use crate::clearing;
    use crate::ranks::{RoleInfo, exchange_ranks};

    struct Node {
        handler: DynamicRendezvous,
        rounds: Rounds,
    }

    impl Node {
        fn new(store: &Arc<HashStore>) -> Self {
            let store: Arc<dyn Store> = Arc::<HashStore>::clone(store);
            let backend = Arc::new(C10dBackend::new(Arc::clone(&store), "job").unwrap());
            let settings = RendezvousSettings::new("job", 2, 2).unwrap();
            let options = DynamicRendezvousOptions::new()
                .with_local_addr("127.0.0.1")
                .with_shared_store(false);
            Self {
                handler: DynamicRendezvous::new(backend, store, settings, options).unwrap(),
                rounds: Rounds::default(),
            }
        }

        /// Joins a round, as an agent does; returns its rank.
        fn join(&mut self) -> usize {
            let round = self.handler.next_rendezvous().unwrap();
            clearing::is_first(&*round.store).unwrap();
            let own = RoleInfo {
                role: "trainer".to_owned(),
                local_world_size: 1,
            };
            let (store, rank) = (&*round.store, round.rank);
            exchange_ranks(
                store,
                rank,
                2,
                &own,
                store.timeout(),
                &c10d_socket::Cancel::NEVER,
            )
            .unwrap();
            self.rounds.add(round);
            rank
        }
    }

    /// The numbers of keys after rounds of two nodes, in each of which another node takes the place of one: of the
    /// `oldest` or of the other, so that the one node stays.
    fn keys_while_nodes_depart(is_oldest: bool) -> Vec<u64> {
        let store = Arc::new(HashStore::new());
        let mut nodes = vec![Node::new(&store), Node::new(&store)];
        let mut counts = Vec::new();
        for _ in 0..150 {
            thread::scope(|scope| {
                let joins = nodes.iter_mut().map(|node| scope.spawn(|| node.join()));
                let joins: Vec<_> = joins.collect();
                let ranks = joins.into_iter().map(|join| join.join().unwrap());
                assert_eq!(ranks.sum::<usize>(), 1);
            });
            for node in &mut nodes {
                node.rounds.forget_old(&node.handler);
            }
            counts.push(store.num_keys().unwrap());
            let departed = nodes.remove(usize::from(!is_oldest));
            departed.handler.leave().unwrap();
            nodes.push(Node::new(&store));
        }
        counts
    }

    /// docs/rendezvous.md, BOOT 9.
    #[test]
    fn the_store_does_not_grow_with_the_nodes_that_have_left() {
        for is_oldest in [false, true] {
            let counts = keys_while_nodes_depart(is_oldest);
            // The keys of four rounds and the last 128 notices stay.
            let (early, late) = counts.split_at(140);
            let most = early.iter().max();
            assert_eq!(late.iter().max(), most, "is_oldest={is_oldest}: {counts:?}");
        }
    }
}
