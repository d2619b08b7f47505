//! Publishes why a job is over, and reads the reason that another node has published. Also keeps the first failure of the
//! job for later reports, because a restart hides it, and later failures are often consequences.
//!
//! Nodes share the first failure on the board of each round. A job without failures makes no request for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Deadline, sleep};
use elastic_rendezvous::{Membership, NodeId, RoundBoard};

use super::ElasticAgent;
use super::event::RoundRecord;
use super::exchange::ExitExchange;
use super::runtime::Runtime;
use super::site::Site;
use crate::failure::ExitRecord;
use crate::job_end::{self, EndNotice, OwnEnd};
use crate::round::{Crash, EXIT_BARRIER_TIMEOUT, Facts, Input, RoundEnding};
use crate::worker::{WorkerExit, WorkerOutcome};

/// The interval in which the host of the store checks whether all nodes have read the reason. The store is in the
/// process of the host.
const ASK_INTERVAL: Duration = Duration::from_millis(20);

impl Runtime<'_> {
    /// Reads why another node has ended the job: from the rounds of this node, or from the last rounds if it was in
    /// none.
    pub(super) fn why_job_ended(&mut self) -> Option<Box<EndNotice>> {
        let handler = &self.node.shared.handler;
        let others = || handler.last_boards().unwrap_or_default();
        let notice = self.rounds.why_job_ended(others).map(Box::new);
        self.adopt_first_failure(notice.as_ref().and_then(|it| it.first_failure.clone()));
        notice
    }

    pub(super) fn facts(&mut self) -> Facts {
        let facts = self.rounds.facts(self.has_store_per_round);
        let notice = facts.job_end.as_ref();
        self.adopt_first_failure(notice.and_then(|it| it.first_failure.clone()));
        facts
    }

    pub(super) fn publish_end(&mut self, end: OwnEnd) {
        let host = &self.node.host;
        let exit = end.rank.and_then(|rank| self.site.exit_record(rank, host));
        let first = self.node.first_failure.clone();
        let notice = end.notice(host, exit, first);
        self.rounds.publish_end(&notice);
    }

    /// Reads why another node has ended the job. If no worker runs, the notice has the root cause as well, and this waits
    /// for up to 0.7 s for the exits that explain it.
    pub(super) fn explained_end(&mut self) -> Option<Box<EndNotice>> {
        let mut notice = self.why_job_ended()?;
        let is_running = matches!(self.site, Site::Running(_));
        if !is_running && !notice.is_at_exit && self.rounds.current().is_some() {
            notice.explain(self.decide_from_board());
        }
        Some(notice)
    }

    /// Confirms that this node no longer needs the store to learn why the job is over. Then it makes no further requests
    /// unless it hosts the store. While its workers run, it reads the exits of other nodes before, without blocking.
    pub(super) fn confirm(&mut self) {
        let confirmation = self.rounds.take_confirmation();
        let handler = Arc::clone(&self.node.shared.handler);
        let confirm = move || {
            if let Some(confirmation) = &confirmation {
                confirmation.send();
            }
            if handler.keeps_store_for().is_none() {
                handler.detach();
            }
        };
        // A node of torchrun has published neither a reason nor exits.
        let may_read = self.exchange.is_none() && self.rounds.has_published_end();
        match self.exits_until_now().filter(|_| may_read) {
            Some((board, reader, own)) => {
                self.exchange = ExitExchange::read(&board, reader, own, confirm.clone());
                if self.exchange.is_none() {
                    confirm();
                }
            }
            None => confirm(),
        }
    }

    /// Reads the record of a worker that its own signal has killed, for example SIGABRT.
    pub(super) fn read_crash(&mut self, exit: WorkerExit) -> Input {
        let record = self.site.exit_record(exit.rank, &self.node.host);
        let record =
            record.unwrap_or_else(|| ExitRecord::of(&without_words(&exit), &self.node.host));
        // A traceback explains the exit alone, so the other ranks do not matter.
        let finished = match record.has_traceback {
            true => 0,
            false => self.rounds.finished().unwrap_or_default(),
        };
        Input::Crash(Box::new(Crash {
            exit,
            record,
            finished,
        }))
    }
}

fn without_words(exit: &WorkerExit) -> WorkerOutcome {
    WorkerOutcome {
        local_rank: exit.local_rank,
        rank: exit.rank,
        pid: exit.pid,
        exit: exit.exit,
        ended_at: exit.ended_at,
        was_stopped: false,
        error_file: None,
        stderr_tail: Vec::new(),
    }
}

/// The members that have left their round or were lost, as far as they are named.
#[cfg(feature = "launcher")]
fn departed(membership: Membership) -> Vec<NodeId> {
    let lost = membership.lost.into_iter().map(|it| it.node);
    let left = membership.left.into_iter().map(|it| it.node);
    lost.chain(left).collect()
}

#[cfg(feature = "launcher")]
impl ElasticAgent {
    /// Waits until the other nodes have read why the job is over, if this node hosts their store.
    ///
    /// It waits for at most the time in which a node counts as live. After a signal it waits for at most half of the
    /// time that `grace_left` returns, and after a second signal it returns at once.
    pub(crate) fn await_readers(&self, grace_left: impl Fn() -> Option<Duration>) {
        let shared = &self.node.shared;
        let (Some(published), Some(limit)) =
            (&self.node.published, shared.handler.keeps_store_for())
        else {
            return;
        };
        let limit = match published.is_at_exit {
            // The other nodes read the reason when their workers have exited.
            true => EXIT_BARRIER_TIMEOUT,
            false => limit,
        };
        let mut deadline = Deadline::after(Instant::now(), limit);
        let mut is_signalled = false;
        loop {
            let departed = shared
                .handler
                .membership()
                .map_or_else(|_| Vec::new(), departed);
            let now = Instant::now();
            let have_all = job_end::have_all_read(&published.board, published.nodes, &departed);
            if !matches!(have_all, Ok(false)) || deadline.has_passed(now) {
                return;
            }
            if !is_signalled && let Some(left) = grace_left() {
                is_signalled = true;
                deadline = deadline.min(Deadline::after(now, left / 2));
            }
            if sleep(ASK_INTERVAL, [shared.kill_switch.cancel()]).is_err() {
                return;
            }
        }
    }
}

impl Runtime<'_> {
    /// Remembers, after a round, the worker that failed first on this node or on another node.
    pub(super) fn note_first_failure(&mut self, record: &RoundRecord) {
        let mut outcomes = record.outcomes.iter();
        let failed = outcomes.find(|it| !it.exit.is_success() && !it.was_stopped);
        let has_restarted = match record.ending {
            // The store may end with a job that has ended.
            RoundEnding::Failed => !self.rounds.has_published_end(),
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
    fn share_first_failure(&mut self) {
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
    fn adopt_first_failure(&mut self, other: Option<ExitRecord>) {
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
