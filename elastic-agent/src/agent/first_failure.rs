//! The first failure of the job, which later reports still have: a restart hides it, and what follows is often a consequence.
//!
//! Nodes tell it to each other on the board of each round. A job without failures has no request for it.

use elastic_rendezvous::RoundBoard;

use super::record::RoundRecord;
use super::runtime::Runtime;
use crate::failure::ExitRecord;
use crate::job_end;
use crate::round::RoundEnding;

impl Runtime<'_> {
    /// A round is over. Remembers the worker that failed first, on this node or another one.
    pub(super) fn note_first_failure(&mut self, record: &RoundRecord) {
        let mut outcomes = record.outcomes.iter();
        let failed = outcomes.find(|it| !it.exit.is_success() && !it.was_stopped);
        let has_restarted = match record.ending {
            RoundEnding::Failed => true,
            RoundEnding::MembersChanged(_) => self.is_store_near(),
            _ => return,
        };
        if self.node.first_failure.is_none() {
            self.node.first_failure = failed.map(|it| ExitRecord::of(it, &self.node.host));
        }
        if has_restarted {
            self.share_first_failure();
        }
    }

    /// Tells the nodes of this round the first failure, and adopts an earlier one that they know.
    pub(super) fn share_first_failure(&mut self) {
        if let Some(board) = self.board_of_several() {
            self.adopt(job_end::merge_first(
                &board,
                self.node.first_failure.as_ref(),
            ));
        }
    }

    /// As [`share_first_failure`](Self::share_first_failure), in a round that follows another one.
    pub(super) fn carry_first_failure(&mut self) {
        if self.has_store_per_round && self.rounds.is_later() {
            self.share_first_failure();
        }
    }

    /// Keeps the earlier one of a failure and the one that is known.
    pub(super) fn adopt_first_failure(&mut self, other: Option<ExitRecord>) {
        let known = self.node.first_failure.take();
        let both = [known, other].into_iter().flatten();
        self.node.first_failure = both.min_by_key(|it| it.ended_unix_ms);
    }

    fn adopt(&mut self, merged: Result<Option<ExitRecord>, c10d_store::StoreError>) {
        match merged {
            Ok(first) => self.adopt_first_failure(first),
            Err(error) => log::debug!("cannot share the first failure of the job: {error}"),
        }
    }

    /// Whether the store has answered lately. A restart in an outage does not wait for it.
    fn is_store_near(&self) -> bool {
        let membership = self.node.shared.handler.membership();
        membership.is_ok_and(|it| !it.is_evicted)
    }

    fn board_of_several(&self) -> Option<RoundBoard> {
        let round = self.rounds.current()?;
        (round.world_size > 1).then(|| round.board())
    }
}
