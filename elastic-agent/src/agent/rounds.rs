//! The last rounds of this node, and what their stores say.

use elastic_rendezvous::RendezvousInfo;

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
    pub(super) fn forget_old(&mut self, has_store_per_round: bool) {
        let kept = self.newest_first.len().min(Self::KEPT);
        let old = self.newest_first.split_off(kept);
        let current = self.newest_first.first().filter(|_| has_store_per_round);
        for (old, current) in old.iter().zip(current.into_iter().cycle()) {
            old_round::forget(old, current);
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
