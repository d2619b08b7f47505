//! The operation in progress, and the outage of the store that it may outlast.

use std::time::Duration;

use c10d_store::in_brief;

use crate::values::error::RendezvousError;
use crate::values::goal::Operation;

/// The time between two log lines of a join that waits.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The operation in progress; [`Operation::KeepAlive`] between two operations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Current {
    pub(super) operation: Operation,
    pub(super) deadline: Duration,
    began_at: Duration,
    logged_at: Duration,
}

impl Current {
    pub(super) const NONE: Self = Self::new(Operation::KeepAlive, Duration::ZERO, Duration::ZERO);

    pub(super) const fn new(operation: Operation, now: Duration, limit: Duration) -> Self {
        Self {
            operation,
            deadline: now.saturating_add(limit),
            began_at: now,
            logged_at: now,
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.operation != Operation::KeepAlive
    }

    /// Returns how long the operation has lasted.
    pub(super) const fn lasted(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began_at)
    }

    /// Returns whether it is time for a line of the log about the operation, which counts as written now.
    pub(super) fn is_line_due(&mut self, now: Duration) -> bool {
        let is_due = now.saturating_sub(self.logged_at) >= LOG_INTERVAL;
        if is_due {
            self.logged_at = now;
        }
        is_due
    }
}

/// An outage of the store.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// The time since which the store has not answered.
    since: Option<Duration>,
    /// Whether the log has a line about it.
    is_logged: bool,
}

impl Outage {
    pub(super) const fn is_any(&self) -> bool {
        self.since.is_some()
    }

    /// Returns whether the log already had a line about the outage, which counts as logged now.
    pub(super) const fn replace_logged(&mut self) -> bool {
        std::mem::replace(&mut self.is_logged, true)
    }

    /// Notes an answer of the store.
    pub(super) fn end(&mut self, now: Duration) {
        if let Some(since) = self.since.take() {
            self.is_logged = false;
            let time = now.saturating_sub(since).as_secs_f64();
            log::info!("the store of the rendezvous answers again after {time:.1} s");
        }
    }

    /// Notes a failed request of an operation. Returns whether the operation continues. `attempt` is how long a node tries to
    /// leave, since the store may have ended with the job.
    pub(super) fn lets_continue(
        &mut self,
        current: &Current,
        error: &RendezvousError,
        attempt: Duration,
        now: Duration,
    ) -> bool {
        let is_new = self.since.is_none();
        let since = *self.since.get_or_insert(now);
        let (until, level) = match current.operation {
            Operation::KeepAlive => return false,
            Operation::Join | Operation::Enter | Operation::Exit => {
                (current.deadline, log::Level::Warn)
            }
            Operation::Close | Operation::Leave => {
                let until = current.deadline.min(since.saturating_add(attempt));
                (until, log::Level::Debug)
            }
        };
        if is_new && now < until && !self.replace_logged() {
            let left = until.saturating_sub(now).as_secs_f64();
            log::log!(
                level,
                "{}; reconnecting for up to {left:.0} s",
                in_brief(error)
            );
        }
        now < until
    }
}
