//! The engine in SQLite: [`SqliteJournal`], and [`SqliteJournalReader`], which only reads.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::Path;

use c10d_store::journal::{Journal, JournalError, JournalIdentity, Recovered};
use rusqlite::Connection;

use crate::database::{Database, damaged};
use crate::directory::{Directory, Places};
use crate::newest::NewestFile;
use crate::rows::{BATCHES, CHUNKS, Table, is_cut};
use crate::trust::Access;

/// The bytes in the write-ahead log after which they are moved into the database: a short pause of appends, and a bound
/// of the log.
const WAL_BYTES_MAX: i64 = 8 << 20;

/// A database of up to this many pages, 8 MiB, is checked as a whole when it is opened: that takes at most 15 ms.
const CHECKED_PAGES_MAX: u64 = 2048;

/// The bytes that a commit writes beside its blob: the page where the blob ends, and the page that names it.
const COMMIT_BYTES: i64 = 2 * 4096;

/// Rows are deleted in steps of about these bytes: fewer steps cost less, longer steps are longer pauses.
const DELETION_BYTES: i64 = 128 << 10;

/// A journal in a SQLite database: `journal.db` in a directory that contains nothing else.
///
/// One process serves it at a time: it holds a lock that is released when the process exits. Dropping the journal
/// closes the database.
///
/// ```no_run
/// use std::net::TcpListener;
///
/// use c10d_journal::SqliteJournal;
/// use c10d_store::{ServerOptions, TcpStoreServer};
///
/// let journal = SqliteJournal::open("/var/lib/c10d/job-17")?; // creates it if it is missing
/// let options = ServerOptions::default().with_journal(journal);
/// let listener = TcpListener::bind("127.0.0.1:29500")?;
/// let server = TcpStoreServer::serve(vec![listener], options)?; // has the keys of the journal
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SqliteJournal {
    database: Database,
    /// The next row of each table.
    next_chunk: i64,
    next_batch: i64,
    /// The position of the last batch, and its first row if it was appended since the journal was opened.
    position: u64,
    last_batch: i64,
    /// The last row of the batches that exists; 0 without one.
    last_row: i64,
    snapshot: Option<SnapshotInProgress>,
    /// Rows that are no contents any more, the oldest first.
    old: VecDeque<(Table, Range<i64>)>,
    /// How many bytes of these rows may be deleted before the next append.
    deletion_bytes: i64,
    wal_bytes: i64,
    has_failed: bool,
    newest: NewestFile,
    /// The places of its files when it was opened.
    places: Places,
}

#[derive(Debug)]
struct SnapshotInProgress {
    position: u64,
    first_chunk: i64,
    chunks: u64,
    /// The row of the first batch that is not in it.
    first_batch: i64,
}

impl SqliteJournal {
    /// Opens the journal in this directory to serve it; creates the directory and the journal if they do not exist.
    /// Only this user can read the directory and its files.
    ///
    /// # Errors
    /// [`JournalError`]: the directory cannot be written, another user can change it, another process serves the journal, a
    /// later version has written it, it is damaged or not a journal, or SQLite does not keep what the journal promises.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, JournalError> {
        let mut database = Database::open(directory.as_ref(), Access::Serve)?;
        let header = database.header.clone();
        let (chunks, batches) = database.bounds()?;
        let next_batch = batches.end.max(header.first_batch);
        let position = last_position(&database, next_batch)?;
        let last_row = batches.end - 1;
        database.check_newest(position, last_row)?;
        if database.pages()? <= CHECKED_PAGES_MAX
            && let Some(first) = database.check_structure()?.first()
        {
            return Err(damaged(&database.directory, first.clone()));
        }
        let start = |database: &mut Database| {
            let connection = &database.connection;
            // The next write starts the log from its beginning, so that damage can be distinguished from the cut of a
            // crash: see `wal`.
            checkpoint(connection, "PASSIVE")?;
            database.header.epoch += 1;
            database.header.is_open = true;
            database.header.write(connection)?;
            // A database without its log is known as such.
            checkpoint(connection, "PASSIVE")?;
            connection.query_row("SELECT strftime('%Y-%m-%dT%H:%M:%SZ')", [], |row| {
                row.get(0)
            })
        };
        let started = start(&mut database);
        let since: String = started.map_err(|error| database.error("open", error))?;
        let reached = database.header.newest(position, last_row);
        let of_directory = |directory: &Directory| {
            let mut newest = NewestFile::open(directory)?;
            newest.write(reached)?;
            directory.write_owner(&since)?;
            Ok((newest, directory.places()?))
        };
        let (newest, places) = of_directory(&database.directory)
            .map_err(|error: io::Error| database.directory.engine_error("open", error))?;
        database.newest = Some(reached);
        let mut journal = Self {
            next_chunk: chunks.end.max(header.chunks.end),
            next_batch,
            position,
            last_batch: next_batch,
            last_row,
            snapshot: None,
            old: VecDeque::new(),
            deletion_bytes: 0,
            wal_bytes: 0,
            has_failed: false,
            newest,
            places,
            database,
        };
        journal.let_go_batches(batches.start..header.first_batch);
        journal.let_go(CHUNKS, chunks.start..header.chunks.start);
        // Of a snapshot that was not finished.
        journal.let_go(CHUNKS, header.chunks.end..journal.next_chunk);
        Ok(journal)
    }

    fn let_go(&mut self, table: Table, rows: Range<i64>) {
        if !rows.is_empty() {
            self.old.push_back((table, rows));
        }
    }

    /// Keeps the last row: the row that `Newest` names must exist.
    fn let_go_batches(&mut self, rows: Range<i64>) {
        self.let_go(BATCHES, rows.start - 1..rows.end - 1);
    }

    /// Runs a step, unless one has failed: a sync that is repeated after an error can succeed without the data.
    fn step(
        &mut self,
        operation: &'static str,
        run: impl FnOnce(&mut Self) -> rusqlite::Result<()>,
    ) -> Result<(), JournalError> {
        if self.has_failed {
            return Err(JournalError::Engine {
                operation,
                place: self.place(),
                source: "it has failed before".into(),
            });
        }
        run(self).map_err(|error| {
            self.has_failed = true;
            self.database.error(operation, error)
        })
    }

    /// Adds a blob in one transaction.
    fn insert(
        &mut self,
        table: Table,
        row: i64,
        number: u64,
        blob: &[u8],
    ) -> rusqlite::Result<i64> {
        self.tidy()?;
        let connection = &self.database.connection;
        let next = if is_cut(blob) {
            in_transaction(connection, || table.insert(connection, row, number, blob))?
        } else {
            table.insert(connection, row, number, blob)?
        };
        let bytes = blob.len() as i64;
        self.wal_bytes += bytes + COMMIT_BYTES;
        // Twice as fast as new rows arrive, so that all old rows are deleted before the next snapshot.
        self.deletion_bytes += 2 * bytes + 512;
        Ok(next)
    }

    /// Notes how far the journal is, so that a database is known as such that goes back to an earlier state.
    fn note_newest(&mut self) -> rusqlite::Result<()> {
        let newest = self.database.header.newest(self.position, self.last_row);
        let written = self.newest.write(newest);
        written.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    }

    /// Checks that the files are where they were. A deleted file keeps nothing, and another process can serve a new file
    /// at its path.
    fn check_places(&self) -> rusqlite::Result<()> {
        let what = match self.places.moved() {
            Ok(None) => return Ok(()),
            Ok(Some(name)) => {
                format!("{name} was deleted, moved or replaced while it was served").into()
            }
            Err(error) => Box::<dyn Error + Send + Sync>::from(error),
        };
        Err(rusqlite::Error::ToSqlConversionFailure(what))
    }

    /// Bounds the files. Runs before an append, so that the replies to the one before do not wait for it.
    fn tidy(&mut self) -> rusqlite::Result<()> {
        if self.deletion_bytes >= DELETION_BYTES {
            self.delete_some()?;
        }
        if self.wal_bytes >= WAL_BYTES_MAX {
            self.note_newest()?;
            checkpoint(&self.database.connection, "PASSIVE")?;
            self.wal_bytes = 0;
        }
        Ok(())
    }

    fn delete_some(&mut self) -> rusqlite::Result<()> {
        let mut bytes = std::mem::take(&mut self.deletion_bytes);
        if self.old.is_empty() {
            return Ok(());
        }
        let connection = &self.database.connection;
        let old = &mut self.old;
        self.wal_bytes += bytes / 4 + COMMIT_BYTES;
        in_transaction(connection, || {
            while bytes > 0
                && let Some((table, rows)) = old.front_mut()
            {
                *rows = table.delete_some(connection, rows.clone(), &mut bytes)?;
                if rows.is_empty() {
                    old.pop_front();
                }
            }
            Ok(())
        })
    }
}

impl Journal for SqliteJournal {
    fn identity(&self) -> JournalIdentity {
        self.database.identity()
    }

    fn place(&self) -> String {
        self.database.directory.place()
    }

    fn recover(
        &mut self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        self.database.recover(visit)
    }

    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError> {
        self.step("append to", |this| {
            assert_eq!(position, this.position + 1, "batches follow each other");
            let next = this.insert(BATCHES, this.next_batch, position, batch)?;
            this.check_places()?;
            this.last_batch = std::mem::replace(&mut this.next_batch, next);
            this.last_row = next - 1;
            this.position = position;
            Ok(())
        })
    }

    fn check(&mut self) -> Result<(), JournalError> {
        self.step("keep", |this| this.check_places())
    }

    fn begin_snapshot(&mut self, position: u64) -> Result<(), JournalError> {
        self.step("write a snapshot into", |this| {
            let first_batch = match this.position - position {
                0 => this.next_batch,
                1 => this.last_batch,
                older => panic!("{older} batches follow a snapshot that begins"),
            };
            if let Some(dropped) = this.snapshot.take() {
                this.let_go(CHUNKS, dropped.first_chunk..this.next_chunk);
            }
            this.snapshot = Some(SnapshotInProgress {
                position,
                first_chunk: this.next_chunk,
                chunks: 0,
                first_batch,
            });
            Ok(())
        })
    }

    fn add_to_snapshot(&mut self, chunk: &[u8]) -> Result<(), JournalError> {
        self.step("write a snapshot into", |this| {
            let snapshot = this.snapshot.as_mut().expect("a snapshot was begun");
            snapshot.chunks += 1;
            let number = snapshot.chunks;
            this.next_chunk = this.insert(CHUNKS, this.next_chunk, number, chunk)?;
            Ok(())
        })
    }

    fn finish_snapshot(&mut self) -> Result<(), JournalError> {
        self.step("write a snapshot into", |this| {
            let snapshot = this.snapshot.take().expect("a snapshot was begun");
            let before = this.database.header.clone();
            let header = &mut this.database.header;
            header.position = snapshot.position;
            header.chunks = snapshot.first_chunk..this.next_chunk;
            header.first_batch = snapshot.first_batch;
            header.write(&this.database.connection)?;
            this.wal_bytes += COMMIT_BYTES;
            this.let_go_batches(before.first_batch..snapshot.first_batch);
            this.let_go(CHUNKS, before.chunks);
            Ok(())
        })
    }
}

impl Drop for SqliteJournal {
    /// Everything is durable already; this leaves one file that can be copied.
    fn drop(&mut self) {
        if !self.has_failed {
            self.database.header.is_open = false;
            let noted = self.note_newest();
            let connection = &self.database.connection;
            let closed = noted.and_then(|()| self.database.header.write(connection));
            let _ = closed.and_then(|()| checkpoint(connection, "TRUNCATE"));
        }
    }
}

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

    /// Reads everything, like [`Journal::recover`].
    ///
    /// # Errors
    /// The errors of [`Journal::recover`].
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

/// Moves the write-ahead log into the database.
fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<()> {
    let sql = match mode {
        "TRUNCATE" => "PRAGMA wal_checkpoint(TRUNCATE)",
        _ => "PRAGMA wal_checkpoint(PASSIVE)",
    };
    let (busy, in_log, moved): (i64, i64, i64) = connection
        .prepare_cached(sql)?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if busy != 0 || in_log != moved {
        let what = format!("{moved} of {in_log} pages were moved out of the write-ahead log");
        return Err(rusqlite::Error::ToSqlConversionFailure(what.into()));
    }
    Ok(())
}

/// Runs all or nothing. A failed one is left to the end of the connection, which drops it.
fn in_transaction<T>(
    connection: &Connection,
    run: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.prepare_cached("BEGIN")?.execute([])?;
    let result = run()?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(result)
}

fn last_position(database: &Database, next_batch: i64) -> Result<u64, JournalError> {
    if next_batch == database.header.first_batch {
        return Ok(database.header.position);
    }
    let last = database.connection.query_row(
        "SELECT position FROM batches WHERE row = ?",
        [next_batch - 1],
        |row| row.get(0),
    );
    let last: u64 = last.map_err(|error| database.error("open", error))?;
    if last <= database.header.position {
        let what = format!(
            "batch {last} follows a snapshot of position {}",
            database.header.position
        );
        return Err(damaged(&database.directory, what));
    }
    Ok(last)
}
