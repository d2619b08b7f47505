//! Carries out the requests of the engine: each blocks for at most its own time, or the store's timeout.

use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::{StoreError, in_brief};

use super::HandlerLoop;
use crate::engine::group::Ask as GroupAsk;
use crate::engine::{Ask, Reply};
use crate::shell::board::RoundBoard;
use crate::shell::handler::read_entry;
use crate::shell::marks::MarkBoard;
use crate::values::error::{RendezvousError, is_outage};
use crate::values::node::NodeId;
use crate::values::state::{Part, Watched, Written};

/// How often a store that cannot be watched is polled, like in PyTorch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl HandlerLoop {
    pub(super) fn perform(&mut self, ask: Ask) -> Result<Reply, RendezvousError> {
        if let Ask::WriteState = ask {
            return self.write();
        }
        self.record_steps();
        if let Ask::ReadState = ask {
            return Ok(Reply::State(self.states.read()?));
        }
        self.lease.release();
        match ask {
            Ask::AwaitState { part, until } => return self.await_state(part, until),
            Ask::Group(ask) => return self.ask_group(ask),
            Ask::CheckState => {
                let token = self.engine.to_write().and_then(|(_, token)| token);
                let is_same = self.states.backend().is_current(token)?;
                return Ok(Reply::IsSame(is_same));
            }
            Ask::ReadNotices => {
                self.notices.refresh(self.engine.me());
                return Ok(Reply::Gone(self.notices.gone()));
            }
            Ask::ReadEntry { round } => {
                let board = RoundBoard::of(&self.store, &self.settings.run_id, round);
                let entry = read_entry(&board);
                return match entry {
                    Ok(entry) => Ok(Reply::Entry(round, entry)),
                    Err(error) => Err(RendezvousError::connection(&self.settings.run_id, error)),
                };
            }
            Ask::ReadMarks(nodes) => {
                return self.ask_marks(|marks, _| Ok(Reply::Marks(Some(marks.read(nodes)?))));
            }
            Ask::SetMark => {
                let is_in_group = self.group.is_some();
                return self.ask_marks(|marks, me| match marks.set_own(me, is_in_group) {
                    Err(error) if is_in_group && marks.is_store_in_reach(&error) => {
                        log::debug!("cannot set the mark of this node: {error}");
                        Ok(Reply::Nothing)
                    }
                    result => result.map(|()| Reply::Done),
                });
            }
            Ask::Report => self.report(),
            Ask::Pause { until } => {
                let timeout = self.timeout(until);
                self.receive(timeout);
            }
            Ask::StartAnew => return self.start_anew(None),
            Ask::ReadState | Ask::WriteState | Ask::Done(_) => {}
        }
        Ok(Reply::Nothing)
    }

    fn write(&mut self) -> Result<Reply, RendezvousError> {
        // A member's heartbeat rarely conflicts with another heartbeat (docs/spec/rendezvous.md,
        // LEASE 5).
        let may_be_alone = !self.current.is_any();
        if self.lease.acquire(may_be_alone) {
            // Other nodes have written while this node waited, so it decides again, and makes another
            // step.
            return Ok(Reply::State(self.states.read()?));
        }
        self.record_steps();
        let Some((state, token)) = self.engine.to_write() else {
            return Ok(Reply::Nothing);
        };
        let written = self.states.write(state, token)?;
        let has_conflict = matches!(written, Written::Theirs(..));
        self.lease.written(has_conflict);
        Ok(Reply::Written(written))
    }

    /// Waits for a change of the state or a message, or polls a store that cannot be watched.
    fn await_state(&mut self, part: Part, until: Duration) -> Result<Reply, RendezvousError> {
        let timeout = self.timeout(until);
        let Some(watch) = self.watch.clone() else {
            let pause = timeout.map_or(POLL_INTERVAL, |timeout| timeout.min(POLL_INTERVAL));
            if self.receive(Some(pause)) {
                return Ok(Reply::Nothing);
            }
            return Ok(Reply::State(self.states.read()?));
        };
        let watched = self.wait(|this, cancel| {
            let token = this.engine.to_write().and_then(|(_, token)| token);
            watch.wait(token, part, timeout, cancel)
        });
        let decode = |stored| self.states.decode(stored);
        let found = match watched {
            None | Some(Ok(Watched::Unchanged)) => return Ok(Reply::Nothing),
            Some(Ok(Watched::Changed(stored))) => stored.map(decode).transpose(),
            Some(Err(error)) => Err(error),
        };
        match found {
            Ok(stored) => Ok(Reply::State(stored)),
            Err(error) if self.states.backend().is_reconnecting() => Err(error),
            Err(error) => {
                // The watch would probably fail again at once. If the store itself fails, the next read reports it.
                let why = in_brief(&error);
                log::warn!("polling the rendezvous once a second: {why}");
                self.watch = None;
                Ok(Reply::Nothing)
            }
        }
    }

    /// Carries out a request to the marks.
    fn ask_marks(
        &mut self,
        request: impl FnOnce(&mut MarkBoard, &NodeId) -> Result<Reply, StoreError>,
    ) -> Result<Reply, RendezvousError> {
        let Some(marks) = &mut self.marks else {
            return Ok(Reply::Marks(None));
        };
        match request(marks, self.engine.me()) {
            Ok(reply) => Ok(reply),
            Err(error) if is_outage(&error) || matches!(error, StoreError::Interrupted { .. }) => {
                Err(RendezvousError::connection(&self.settings.run_id, error))
            }
            Err(error) => {
                // Heartbeats still show that a node is lost.
                if !matches!(error, StoreError::Unsupported { .. }) {
                    log::debug!("cannot use the marks of nodes: {error}");
                }
                self.marks = None;
                Ok(Reply::Marks(None))
            }
        }
    }

    fn ask_group(&mut self, mut ask: GroupAsk) -> Result<Reply, RendezvousError> {
        let until = ask.until_mut().copied();
        let timeout = until.and_then(|until| self.timeout(until));
        let is_holder = matches!(ask, GroupAsk::TakeRequests { .. });
        if until.is_some() && self.is_settling && !is_holder {
            self.receive(timeout);
            return Ok(Reply::Nothing);
        }
        let Some((group, index)) = self.group.clone() else {
            return Ok(Reply::Nothing);
        };
        let timeout = timeout.unwrap_or(Duration::MAX);
        let result = if until.is_none() {
            group.perform(index, &ask, timeout)
        } else {
            let waited =
                self.wait(|_, cancel| group.with_cancel(cancel).perform(index, &ask, timeout));
            match waited {
                None => Ok(Reply::Nothing),
                // Otherwise requests may be lost.
                Some(Err(error @ StoreError::Interrupted { .. }))
                    if !error.has_unknown_outcome() =>
                {
                    Ok(Reply::Nothing)
                }
                Some(result) => result,
            }
        };
        result.map_err(|error| RendezvousError::connection(&self.settings.run_id, error))
    }

    /// Calls `wait`, which waits on the store, unless there is a message; then handles the message. A message that
    /// arrives during the wait interrupts it.
    fn wait<T>(&mut self, wait: impl FnOnce(&Self, &Cancel) -> T) -> Option<T> {
        let is_join = self.current.operation.is_join();
        let waited = self.inbox.wait(is_join, |cancel| wait(self, cancel));
        waited.map_err(|message| self.on_message(message)).ok()
    }

    /// Gives back what the engine holds.
    pub(super) fn release(&mut self) {
        let (Some(ask), Some((group, index))) = (self.engine.release(), &self.group) else {
            return;
        };
        if let Err(error) = group.perform(*index, &ask, Duration::ZERO) {
            log::debug!("cannot release the lease of the rendezvous: {error}");
        }
    }

    /// The timeout for a wait until this time; `None` for an indefinite wait. A member that has something to do does
    /// not wait.
    fn timeout(&self, until: Duration) -> Option<Duration> {
        if !self.current.is_any() && !self.jobs.is_empty() {
            return Some(Duration::ZERO);
        }
        (until != Duration::MAX).then(|| until.saturating_sub(self.clock.now().monotonic))
    }
}
