//! Keeps the first failure of the job for later reports, because a restart hides it, and later failures are often
//! consequences.
//!
//! Nodes share it on the board of each round. A job without failures makes no request for it.

use elastic_rendezvous::RoundBoard;

use super::record::RoundRecord;
use super::runtime::Runtime;
use crate::failure::ExitRecord;
use crate::job_end;
use crate::round::RoundEnding;

impl Runtime<'_> {
    /// Remembers, after a round, the worker that failed first on this node or on another node.
    pub(super) fn note_first_failure(&mut self, record: &RoundRecord) {
        let mut outcomes = record.outcomes.iter();
        let failed = outcomes.find(|it| !it.exit.is_success() && !it.was_stopped);
        let has_restarted = match record.ending {
            // The store may end with a job that has ended.
            RoundEnding::Failed => !self.rounds.is_told(),
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

    /// Shares the first failure with the nodes of this round, and adopts an earlier failure that they have recorded.
    pub(super) fn share_first_failure(&mut self) {
        if let Some(board) = self.board_of_several() {
            self.adopt(job_end::merge_first(
                &board,
                self.node.first_failure.as_ref(),
            ));
        }
    }

    /// Does the work of [`share_first_failure`](Self::share_first_failure) in a round that follows another round.
    pub(super) fn carry_first_failure(&mut self) {
        if self.has_store_per_round && self.rounds.is_later() {
            self.share_first_failure();
        }
    }

    /// Keeps the earlier of two failures: `other`, and the first failure so far.
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

    /// The board of the round, if there are other nodes.
    pub(super) fn board_of_several(&self) -> Option<RoundBoard> {
        let round = self.rounds.current()?;
        (round.world_size > 1).then(|| round.board())
    }
}
