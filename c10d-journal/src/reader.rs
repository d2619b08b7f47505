//! A journal that is looked at, not served.

use std::path::Path;

use c10d_store::journal::{JournalError, JournalIdentity, Recovered};

use crate::database::Database;
use crate::directory::Directory;
use crate::trust::Access;

/// Reads a journal without a change to its files: for checks and exports. Keeps servers out while it is open.
///
/// A journal that this process cannot write, for example on a read-only file system, is read from a copy in the directory for
/// temporary files (`TMPDIR`).
#[derive(Debug)]
pub struct SqliteJournalReader {
    database: Database,
}

impl SqliteJournalReader {
    /// Opens the journal in this directory.
    ///
    /// # Errors
    /// [`JournalError`]: there is none, it is in use or damaged, or a later version has written it.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, JournalError> {
        let database = Database::open(directory.as_ref(), Access::Read)?;
        Ok(Self { database })
    }

    /// Which store this is, and how often it was opened to serve.
    #[must_use]
    pub const fn identity(&self) -> JournalIdentity {
        self.database.identity()
    }

    /// What is read and where, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        self.database.directory.place()
    }

    /// Reads everything, as [`Journal::recover`](c10d_store::journal::Journal::recover) does.
    ///
    /// # Errors
    /// As there.
    pub fn recover(
        &self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        self.database.recover(visit)
    }

    /// Has SQLite check the structure of its file: what it found, nothing if the structure is intact.
    ///
    /// # Errors
    /// [`JournalError`] of the engine.
    pub fn check_structure(&self) -> Result<Vec<String>, JournalError> {
        self.database.check_structure()
    }

    /// The bytes of the database and of its write-ahead log.
    ///
    /// # Errors
    /// [`JournalError`] if the system does not say.
    pub fn file_bytes(&self) -> Result<[u64; 2], JournalError> {
        let directory = &self.database.directory;
        let bytes = |path: &Path| {
            Directory::bytes_of(path).map_err(|error| directory.engine_error("read", error))
        };
        Ok([bytes(&directory.database())?, bytes(&directory.wal())?])
    }
}
