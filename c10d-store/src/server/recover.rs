//! Reads a journal before its store is served: on the caller's thread, or in a standby server on a separate thread, until this
//! process leads.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use c10d_socket::Cancel;
use mio::Waker;

use super::options::ServerOptions;
use super::session_replies::SessionReplies;
use crate::groups::NewGroups;
use crate::journal::batch::{Effect, effects_with_format};
use crate::journal::{Journal, JournalError, JournalSource, Recovered};
use crate::session::random_seed;
use crate::state::StoreState;

/// The journal of a server's store.
#[derive(Debug)]
pub(super) enum ServedJournal {
    None,
    Open(Box<OpenJournal>),
    /// A journal that another process may serve.
    StandBy(JournalSource),
}

impl ServedJournal {
    /// Reads the journal of the options, if they have one.
    ///
    /// # Errors
    /// The errors of [`OpenJournal::recover`].
    pub(super) fn open(options: &ServerOptions) -> Result<Self, JournalError> {
        let Some(source) = &options.journal else {
            return Ok(Self::None);
        };
        let open = OpenJournal::recover(source, options.groups, &Cancel::NEVER)?;
        Ok(Self::Open(Box::new(open)))
    }
}

/// A journal with the state that it has kept.
#[derive(Debug)]
pub(super) struct OpenJournal {
    pub(super) journal: Box<dyn Journal>,
    /// Ends the calls of the journal.
    pub(super) cancel: Cancel,
    pub(super) state: StoreState,
    pub(super) carried: SessionReplies,
    /// The position of the last batch.
    pub(super) durable: u64,
    /// The bytes of the batches after the snapshot.
    pub(super) batch_bytes: usize,
}

impl OpenJournal {
    /// Reads everything. Of an engine that other processes share, waits until this one leads.
    ///
    /// # Errors
    /// [`JournalError`], [`JournalError::Damaged`] if an effect cannot follow those before it.
    pub(super) fn recover(
        source: &JournalSource,
        groups: Option<NewGroups>,
        cancel: &Cancel,
    ) -> Result<Self, JournalError> {
        let mut journal = (source.open)(cancel)?;
        let empty = || StoreState::new(groups.map(|groups| groups(random_seed())));
        let mut state = empty();
        let mut carried = SessionReplies::default();
        let mut batch_bytes = 0;
        let (place, formats) = (journal.place(), journal.formats());
        let damaged = |what: String| JournalError::Damaged {
            place: place.clone(),
            what,
        };
        let durable = journal.recover(&mut |piece| {
            let (position, bytes) = match piece {
                Recovered::Chunk { position, bytes } => (position, bytes),
                Recovered::Batch { position, bytes } => {
                    batch_bytes += bytes.len();
                    (position, bytes)
                }
                Recovered::Restart => {
                    state = empty();
                    carried = SessionReplies::default();
                    batch_bytes = 0;
                    return Ok(());
                }
            };
            let read = effects_with_format(position, bytes);
            let (format, effects) = read.map_err(|it| damaged(it.to_string()))?;
            formats.check(format.into(), || place.clone())?;
            for effect in effects {
                let effect = effect.map_err(|it| damaged(it.to_string()))?;
                if matches!(effect, Effect::Group { .. }) && !state.has_groups() {
                    let place = place.clone();
                    return Err(JournalError::HasGroups { place });
                }
                if !state.recover(effect) || !carried.apply(effect) {
                    return Err(damaged(format!(
                        "batch {position} does not follow from those before: {effect:?}"
                    )));
                }
            }
            Ok(())
        })?;
        state.start_recording(durable);
        if let Some(recorder) = state.recorder_mut() {
            recorder.set_format(journal.format());
        }
        state.end_recovered();
        state.set_carried_bytes(carried.memory_bytes());
        log::info!(
            "opened the journal {place}: {} keys, run {}",
            state.counters().keys,
            journal.identity().epoch
        );
        Ok(Self {
            journal,
            cancel: cancel.clone(),
            state,
            carried,
            durable,
            batch_bytes,
        })
    }
}

type Outcome = Result<Box<OpenJournal>, JournalError>;

/// The server's side of the thread that waits for the journal of a standby server, which can take days. Dropping it cancels the
/// wait.
#[derive(Debug)]
pub(super) struct Standby {
    cancel: Cancel,
    outcome: Arc<Mutex<Option<Outcome>>>,
    thread: Option<JoinHandle<()>>,
}

impl Standby {
    /// `waker` wakes the event loop once there is an outcome.
    pub(super) fn start(
        source: JournalSource,
        groups: Option<NewGroups>,
        waker: Arc<Waker>,
    ) -> io::Result<Self> {
        let cancel = Cancel::new();
        let outcome = Arc::new(Mutex::new(None));
        let (of_thread, written) = (cancel.clone(), Arc::clone(&outcome));
        let thread = thread::Builder::new()
            .name("c10d-standby".to_owned())
            .spawn(move || {
                let result = OpenJournal::recover(&source, groups, &of_thread).map(Box::new);
                *written.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                if let Err(error) = waker.wake() {
                    log::error!("cannot wake a standby store server to lead: {error}");
                }
            })?;
        Ok(Self {
            cancel,
            outcome,
            thread: Some(thread),
        })
    }

    /// The journal, once this process leads, or why it never will.
    pub(super) fn take_outcome(&mut self) -> Option<Outcome> {
        let outcome = self.outcome.lock();
        let outcome = outcome.unwrap_or_else(PoisonError::into_inner).take();
        if outcome.is_some() {
            // The open journal continues with it.
            self.cancel = Cancel::NEVER;
        }
        outcome
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of a standby store server panicked");
        }
    }
}
