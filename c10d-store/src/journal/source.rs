//! The source of a server's journal, which is opened once the server listens, and the receiver of its failure.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use c10d_socket::Cancel;

use super::{Journal, JournalError};

/// Opens a journal. It may block as long as [`Journal::recover`], until it is cancelled.
pub type OpenJournal = dyn Fn(&Cancel) -> Result<Box<dyn Journal>, JournalError> + Send + Sync;

/// Receives the reason why a server has stopped because of its journal.
pub type JournalFailed = dyn Fn(&JournalError) + Send + Sync;

/// Opens the journal of a server that listens. An open [`Journal`] can also be used as a source, for one server.
///
/// The journal is opened this late because launchers do not know beforehand which of them serves the store. Launchers
/// that do not serve it do not open the journal.
#[derive(Clone)]
pub struct JournalSource {
    /// Opens the journal. Called for each server.
    pub open: Arc<OpenJournal>,
    /// Called on the server's thread when its journal has failed, before the server closes its connections. It must
    /// not block.
    pub on_failure: Option<Arc<JournalFailed>>,
}

impl<J: Journal + 'static> From<J> for JournalSource {
    fn from(journal: J) -> Self {
        let place = journal.place();
        let journal = Mutex::new(Some(journal));
        let open = move |_: &Cancel| {
            let journal = journal
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let journal = journal.ok_or_else(|| JournalError::Engine {
                operation: "open",
                place: place.clone(),
                source: "another server has taken the journal of these options".into(),
            })?;
            Ok(Box::new(journal) as Box<dyn Journal>)
        };
        Self {
            open: Arc::new(open),
            on_failure: None,
        }
    }
}

/// Sources that open alike are equal.
impl PartialEq for JournalSource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.open, &other.open)
    }
}

impl Eq for JournalSource {}

impl fmt::Debug for JournalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalSource").finish_non_exhaustive()
    }
}
