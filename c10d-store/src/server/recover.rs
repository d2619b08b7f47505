//! Reads a journal before its store is served.

use c10d_socket::Cancel;

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
