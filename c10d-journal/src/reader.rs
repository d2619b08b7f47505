//! A journal that is opened for reading, not for serving.

use std::path::Path;

use c10d_store::journal::{JournalError, JournalIdentity, Recovered};

use crate::database::Database;
use crate::directory::Directory;
use crate::trust::Access;

/// Reads a journal without a change to its files: for checks and exports. Keeps servers out while it is open.
///
/// A journal that this process cannot write, for example on a read-only file system, is read from a copy in the directory for
/// temporary files (`TMPDIR`).
///
/// ```no_run
/// use c10d_journal::SqliteJournalReader;
///
/// let reader = SqliteJournalReader::open("/var/lib/c10d/job-17")?;
/// println!("{} was opened {} times", reader.place(), reader.identity().epoch);
/// for problem in reader.check_structure()? {
///     println!("damaged: {problem}");
/// }
/// # Ok::<(), c10d_store::journal::JournalError>(())
/// ```
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

    /// Returns the identity of the store, and how often it was opened to serve.
    #[must_use]
    pub const fn identity(&self) -> JournalIdentity {
        self.database.identity()
    }

    /// Returns a description of the journal and its place, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        self.database.directory.place()
    }

    /// Reads everything, like [`Journal::recover`](c10d_store::journal::Journal::recover).
    ///
    /// # Errors
    /// The errors of [`Journal::recover`](c10d_store::journal::Journal::recover).
    pub fn recover(
        &self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        self.database.recover(visit)
    }

    /// Has SQLite check the structure of its file. Returns the problems that it found; empty if the structure is
    /// intact.
    ///
    /// # Errors
    /// [`JournalError`] of the engine.
    pub fn check_structure(&self) -> Result<Vec<String>, JournalError> {
        self.database.check_structure()
    }

    /// Returns the bytes of the database and of its write-ahead log.
    ///
    /// # Errors
    /// [`JournalError`] if the system does not report the size of a file.
    pub fn file_bytes(&self) -> Result<[u64; 2], JournalError> {
        let directory = &self.database.directory;
        let bytes = |path: &Path| {
            Directory::bytes_of(path).map_err(|error| directory.engine_error("read", error))
        };
        Ok([bytes(&directory.database())?, bytes(&directory.wal())?])
    }
}
