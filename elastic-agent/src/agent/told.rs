//! Publishes why a job is over, and reads what another node has published about that.

use std::time::{Duration, Instant};

use c10d_socket::{Deadline, sleep};

use super::ElasticAgent;
use super::runtime::Runtime;
use crate::failure::ExitRecord;
use crate::job_end::{self, EndNotice, OwnEnd};
use crate::round::{Crash, EXIT_BARRIER_TIMEOUT, Facts, Input};
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

    /// Confirms that this node has read why the job is over. It makes no further requests unless it hosts the store.
    pub(super) fn confirm(&mut self) {
        self.rounds.confirm();
        let handler = &self.node.shared.handler;
        if handler.keeps_store_for().is_none() {
            handler.detach();
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

#[cfg(feature = "launcher")]
impl ElasticAgent {
    /// Waits until the other nodes have read why the job is over, if this node hosts their store.
    ///
    /// It waits for at most the time in which a node counts as live. After a signal it waits for at most half of the
    /// time that `grace_left` returns, and after a second signal it returns at once.
    pub(crate) fn await_readers(&self, grace_left: impl Fn() -> Option<Duration>) {
        let shared = &self.node.shared;
        let (Some(told), Some(limit)) = (&self.node.told, shared.handler.keeps_store_for()) else {
            return;
        };
        let limit = match told.is_at_exit {
            // The other nodes read the reason when their workers have exited.
            true => EXIT_BARRIER_TIMEOUT,
            false => limit,
        };
        let mut deadline = Deadline::after(Instant::now(), limit);
        let mut is_signalled = false;
        loop {
            let departed = shared.handler.membership().map_or(0, |it| it.departed());
            let now = Instant::now();
            if !matches!(job_end::have_all_read(&told.board, departed), Ok(false))
                || deadline.has_passed(now)
            {
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
