//! The event loop's part for a store with a journal: it hands batches to the journal's thread, and releases everything that
//! waits for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mio::Token;

use super::EventLoop;
use crate::journal::batch::BatchWriter;
use crate::journal::{Authority, JournalError};
use crate::server::connection::{Connections, conn_id_of};
use crate::server::extensions::new_sessions;
use crate::server::journal_queue::{GATHERED_BYTES_MAX, Gathered, JournalQueue, SnapshotStep};
use crate::server::recover::Standby;
use crate::state::{Recorder, SNAPSHOT_SLICE};

impl EventLoop {
    /// Releases the replies that are durable, and leads once the journal is open. Returns `false` if the server must stop.
    pub(super) fn follow_journal(&mut self, is_busy: bool) -> bool {
        let followed = self
            .take_over()
            .and_then(|()| self.release_durable(is_busy));
        let Err(error) = followed else {
            return true;
        };
        log::error!("the store server stops: {error}");
        // The only failure.
        let error = self.counts.journal_failure.get_or_init(|| error);
        let source = self.options.journal.as_ref();
        if let Some(notify) = source.and_then(|source| source.on_failure.as_ref()) {
            notify(error);
        }
        self.give_up_journal();
        false
    }

    /// Records the position that has become durable, and releases everything that waits for it.
    ///
    /// # Errors
    /// The failure of the journal: nothing may be sent any more.
    fn release_durable(&mut self, is_busy: bool) -> Result<(), JournalError> {
        let Some(journal) = &mut self.extensions.journal else {
            return Ok(());
        };
        if let Some(error) = journal.thread.take_failure() {
            return Err(error);
        }
        if let Some(end) = journal.authority.as_ref().and_then(Authority::ended) {
            let place = journal.thread.place().to_owned();
            let reason = end.reason.clone();
            return Err(match end.is_damage {
                true => JournalError::Damaged {
                    place,
                    what: reason,
                },
                false => JournalError::Deposed { place, reason },
            });
        }
        if !journal.withheld.is_empty() {
            for token in journal.take_withheld() {
                self.connections.touch(token);
            }
        }
        let durable = journal.thread.durable();
        if durable == journal.durable {
            return Ok(());
        }
        journal.durable = durable;
        if let Some(recorder) = self.state.recorder_mut() {
            recorder.appended();
        }
        let now = Instant::now();
        let released = self.connections.count_held(..=durable);
        let waiting = self.connections.count_held(durable + 1..);
        journal.hold.committed(released, waiting, now);
        // First, so that the next batch is written while the replies are sent.
        self.keep_gathered(is_busy, now);
        self.connections.release(durable);
        self.extensions.observed.release(durable);
        while let Some(journal) = &mut self.extensions.journal
            && let Some((position, token, request)) = journal.done.front().copied()
            && position <= durable
        {
            journal.done.pop_front();
            self.say_done(token, request);
        }
        Ok(())
    }

    /// Hands over what has gathered, unless a batch is on its way or this one [waits](JournalQueue::hold), and a part of a
    /// snapshot.
    pub(super) fn keep_gathered(&mut self, is_busy: bool, now: Instant) {
        let (Some(journal), Some(recorder)) =
            (&mut self.extensions.journal, self.state.recorder_mut())
        else {
            return;
        };
        let gathered = Gathered {
            bytes: recorder.gathered_bytes(),
            clients: self.connections.count_held(journal.durable + 1..),
        };
        if journal.hold.may_go(gathered, is_busy, now)
            && let Some((position, batch)) = recorder.take_batch(&mut journal.memory)
        {
            journal.hold.start_next(now);
            journal.bytes_since_snapshot += batch.len();
            journal.thread.append(position, batch, &mut journal.memory);
            let enough = journal.snapshot_after_bytes.max(self.state.data_bytes());
            let is_due = journal.bytes_since_snapshot >= enough && !journal.is_copying;
            if is_due
                && !self.state.is_in_snapshot()
                && let Some(format) = journal.agreed_format()
            {
                journal.bytes_since_snapshot = 0;
                journal.is_copying = true;
                journal.thread.step(SnapshotStep::Begin { position });
                let mut sessions = BatchWriter::new(format);
                self.extensions.sessions.carried.write(&mut sessions);
                if !sessions.is_empty() {
                    let chunk = sessions.finish(position, Vec::new());
                    journal.thread.step(SnapshotStep::Chunk(chunk));
                }
                self.state.start_chunks(position, format);
            }
            self.connections.set_full(false);
            for token in std::mem::take(&mut journal.paused) {
                self.resume(token);
            }
        }
        self.copy_for_journal();
    }

    /// Has requests wait if too much is gathered for the journal.
    pub(super) fn limit_gathered(&mut self) {
        let gathered_bytes = self.state.recorder().map_or(0, Recorder::gathered_bytes);
        if gathered_bytes > GATHERED_BYTES_MAX {
            self.connections.set_full(true);
        }
    }

    /// Has a connection flushed again once something may be sent.
    pub(super) fn withhold(&mut self, token: Token) {
        if let Some(journal) = &mut self.extensions.journal {
            journal.withheld.insert(token);
        }
    }

    /// Records a connection whose requests must wait, so that it resumes when fewer effects are gathered. Returns whether the
    /// connection must wait.
    pub(super) fn pause_if_full(&mut self, token: Token) -> bool {
        let Some(journal) = &mut self.extensions.journal else {
            return false;
        };
        let is_paused = self.connections.is_full()
            && self
                .connections
                .get(token)
                .is_some_and(|it| it.flow.is_paused());
        if is_paused {
            journal.paused.insert(token);
        }
        is_paused
    }

    /// Whether a snapshot of observers can start.
    pub(super) fn is_snapshot_due(&self) -> bool {
        let is_copying = self
            .extensions
            .journal
            .as_ref()
            .is_some_and(JournalQueue::is_copying);
        self.extensions.observed.is_snapshot_wanted() && !is_copying
    }

    fn copy_for_journal(&mut self) {
        let Some(journal) = &mut self.extensions.journal else {
            return;
        };
        if !journal.has_work() {
            return;
        }
        let (chunks, is_done) = self.state.copy_chunks(SNAPSHOT_SLICE);
        for chunk in chunks {
            journal.thread.step(SnapshotStep::Chunk(chunk));
        }
        if is_done {
            journal.is_copying = false;
            journal.thread.step(SnapshotStep::Finish);
        }
    }

    /// Makes a standby server lead once its journal is open.
    ///
    /// # Errors
    /// The reason why the server cannot lead.
    fn take_over(&mut self) -> Result<(), JournalError> {
        let outcome = self
            .extensions
            .standby
            .as_mut()
            .and_then(Standby::take_outcome);
        let Some(outcome) = outcome else {
            return Ok(());
        };
        self.extensions.standby = None;
        let open = *outcome?;
        let place = open.journal.place();
        let sessions = new_sessions(&self.options);
        let started = JournalQueue::start(open, sessions, Arc::clone(&self.extensions.waker));
        let (state, sessions, journal) = started.map_err(|source| JournalError::Engine {
            operation: "start a thread for",
            place,
            source: Box::new(source),
        })?;
        (
            self.state,
            self.extensions.sessions,
            self.extensions.journal,
        ) = (state, sessions, journal);
        // The recovered times count from this moment.
        self.started = Instant::now();
        for (token, peer) in self.connections.accepted() {
            self.state.connect(conn_id_of(token), peer);
        }
        self.counts.is_standby.store(false, Ordering::Release);
        log::info!("the store server leads from now on");
        Ok(())
    }

    /// Drops END_WAITS that sessions may have missed, once no session can return.
    pub(super) fn forget_ends(&mut self, now: Instant) {
        if let Some(journal) = &mut self.extensions.journal
            && journal.ends_until.is_some_and(|at| at <= now)
        {
            journal.ends_until = None;
            self.state.forget_ends();
        }
    }

    /// The journal has failed, or another process has taken over: closes everything before the journal's thread ends, which
    /// can take a while.
    fn give_up_journal(&mut self) {
        self.connections = Connections::new(self.options.unsent_bytes_max());
        if let Some(journal) = self.extensions.journal.take() {
            journal.thread.end(None);
        }
    }

    /// Has everything appended that was carried out.
    pub(super) fn end_journal(&mut self) {
        if let Some(mut journal) = self.extensions.journal.take() {
            let last = self.state.recorder_mut().and_then(|recorder| {
                recorder.appended();
                recorder.take_batch(&mut journal.memory)
            });
            journal.thread.end(last);
        }
    }

    /// The position on which the current state depends, or 0 if everything is durable.
    pub(super) fn newest_undurable(&self) -> u64 {
        let newest = self.state.recorder().map_or(0, Recorder::newest);
        let durable = self
            .extensions
            .journal
            .as_ref()
            .map_or(0, |journal| journal.durable);
        if newest > durable { newest } else { 0 }
    }
}
