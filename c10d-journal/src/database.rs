//! An open database: the settings that its guarantees depend on, its format, and its errors.

use std::fs::File;
use std::io::{self, BufReader};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use c10d_store::journal::{JournalError, JournalIdentity, Recovered};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use rustix::fs::Access as FileAccess;

use crate::copy::Copy;
use crate::directory::Directory;
use crate::header::{self, Header};
use crate::newest::Newest;
use crate::rows::{self, BATCHES, CHUNKS, ReadError};
use crate::trust::{Access, distrust};
use crate::wal;

/// The version of the tables, and the newest that this program reads.
const FORMAT: i64 = 1;

/// Marks a database as ours: `c10d`.
const APPLICATION: i64 = 0x6331_3064;

/// The previous server may be exiting, or another process that opens a new journal at the same time retreats. A
/// serving process holds its lock for longer.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// Name, value, and the value that SQLite reports after the change. They are set in this order.
const SETTINGS: [(&str, &str, &str); 10] = [
    // Works without shared memory, and keeps others out from the first access on.
    ("locking_mode", "EXCLUSIVE", "exclusive"),
    ("journal_mode", "WAL", "wal"),
    // A commit returns when it is on the disk.
    ("synchronous", "FULL", "2"),
    // The same on macOS, where it has another name.
    ("fullfsync", "1", "1"),
    ("checkpoint_fullfsync", "1", "1"),
    // SQLite ignores the errors of its automatic checkpoints.
    ("wal_autocheckpoint", "0", "0"),
    // The log of one large batch does not stay.
    ("journal_size_limit", "16777216", "16777216"),
    // An error of the disk must be an error, not a signal.
    ("mmap_size", "0", "0"),
    ("trusted_schema", "0", "0"),
    // The file system may have no place for temporary files.
    ("temp_store", "MEMORY", "2"),
];

/// See the module.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) connection: Connection,
    pub(crate) directory: Directory,
    pub(crate) header: Header,
    /// The state that was on the disk at the opening.
    pub(crate) newest: Option<Newest>,
    /// The copy that SQLite reads if it cannot read in the directory. Dropped after the connection.
    _copy: Option<Copy>,
}

impl Database {
    /// Opens the database and takes its lock, which ends with this process. Changes no file, unless it is opened to be
    /// served: then missing files are made.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self, JournalError> {
        let directory = Directory::new(path).map_err(|error| JournalError::Engine {
            operation: "open",
            place: path.display().to_string(),
            source: Box::new(error),
        })?;
        let engine = |error: io::Error| directory.engine_error("open", error);
        let check_trust = || match distrust(&directory, access).map_err(engine)? {
            Some(why) => Err(directory.engine_error("open", why)),
            None => Ok(()),
        };
        check_trust()?;
        let newest = Newest::read(&directory).map_err(engine)?;
        let is_empty = Directory::bytes_of(&directory.database()).map_err(engine)? == 0;
        let owner = directory.owner();
        if is_empty && let Some(owner) = &owner {
            let what = format!("journal.db is empty or missing, but it was served by {owner}");
            return Err(damaged(&directory, what));
        }
        if access == Access::Serve {
            directory.create().map_err(engine)?;
        }
        // Before an empty one is made.
        let wal_bytes = Directory::bytes_of(&directory.wal()).map_err(engine)?;
        let copy = match access {
            Access::Serve => {
                let writable = rustix::fs::access(directory.database(), FileAccess::WRITE_OK);
                writable.map_err(|error| engine(error.into()))?;
                None
            }
            Access::Read => Copy::if_needed(&directory)?,
        };
        let opened = copy.as_ref().map_or(&directory, |copy| &copy.directory);
        let connection =
            connect(opened).map_err(|error| engine_error(&directory, "open", error))?;
        // Another user may have replaced a file since the previous check.
        check_trust()?;
        let may_create = access == Access::Serve && owner.is_none() && newest.is_none();
        let header = Self::prepare(&connection, &directory, may_create)?;
        if wal_bytes == 0 && header.is_open {
            let what = "journal.db-wal, which has the newest batches, is empty or missing";
            return Err(damaged(&directory, what.to_owned()));
        }
        let log = File::open(opened.wal()).map_err(engine)?;
        let scan = wal::scan(BufReader::with_capacity(1 << 20, log)).map_err(engine)?;
        if let Some(what) = scan.damage() {
            return Err(damaged(&directory, what));
        }
        Ok(Self {
            connection,
            directory,
            header,
            newest,
            _copy: copy,
        })
    }

    /// Refuses a database that is behind the state that was on the disk.
    pub(crate) fn check_newest(&self, position: u64, row: i64) -> Result<(), JournalError> {
        let newest = self.newest.as_ref();
        match newest.and_then(|it| it.refute(&self.header.newest(position, row))) {
            Some(what) => Err(damaged(&self.directory, what)),
            None => Ok(()),
        }
    }

    /// Reads the header. Writes the first one into an empty database.
    fn prepare(
        connection: &Connection,
        directory: &Directory,
        may_create: bool,
    ) -> Result<Header, JournalError> {
        let sqlite = |error| engine_error(directory, "open", error);
        let number = |name| connection.pragma_query_value(None, name, |row| row.get(0));
        let format: i64 = number("user_version").map_err(sqlite)?;
        let application: i64 = number("application_id").map_err(sqlite)?;
        let tables: i64 = connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .map_err(sqlite)?;
        match (application, format, tables) {
            (0, 0, 0) if may_create => {
                let create = || {
                    let store =
                        connection.query_row("SELECT randomblob(16)", [], |row| row.get(0))?;
                    let header = Header::new(store);
                    connection.execute_batch("BEGIN")?;
                    connection.execute_batch(header::SCHEMA)?;
                    connection.execute_batch(rows::SCHEMA)?;
                    connection.pragma_update(None, "application_id", APPLICATION)?;
                    connection.pragma_update(None, "user_version", FORMAT)?;
                    header.insert(connection)?;
                    connection.execute_batch("COMMIT")?;
                    Ok(header)
                };
                create().map_err(sqlite)
            }
            (APPLICATION, 1..=FORMAT, _) => {
                Header::read(connection).map_err(sqlite)?.ok_or_else(|| {
                    damaged(directory, "its header is not as it was written".to_owned())
                })
            }
            (APPLICATION, FORMAT.., _) => Err(JournalError::Newer {
                place: directory.place(),
                found: format as u64,
                known: FORMAT as u64,
            }),
            (0, 0, 0) => Err(damaged(directory, "journal.db has no tables".to_owned())),
            _ => Err(damaged(
                directory,
                "journal.db is a database of another program".to_owned(),
            )),
        }
    }

    pub(crate) const fn identity(&self) -> JournalIdentity {
        JournalIdentity {
            store: self.header.store,
            epoch: self.header.epoch as u64,
        }
    }

    /// The size of the database.
    pub(crate) fn pages(&self) -> Result<u64, JournalError> {
        let pages = self
            .connection
            .pragma_query_value(None, "page_count", |row| row.get(0));
        pages.map_err(|error| self.error("read", error))
    }

    /// Has SQLite check the structure of its file. Returns the problems that it found; empty if the structure is
    /// intact.
    pub(crate) fn check_structure(&self) -> Result<Vec<String>, JournalError> {
        let check = || {
            let mut check = self.connection.prepare("PRAGMA integrity_check")?;
            let found = check.query_map([], |row| row.get::<_, String>(0))?;
            let lines = found.map(|text| Ok(text?.lines().map(str::to_owned).collect()));
            lines.collect::<rusqlite::Result<Vec<Vec<_>>>>()
        };
        let found = check().map_err(|error| self.error("check", error))?;
        let mut lines = found.concat();
        lines.retain(|line| line != "ok" && !line.starts_with("***"));
        Ok(lines)
    }

    /// The rows that exist: of chunks and of batches.
    pub(crate) fn bounds(&self) -> Result<(Range<i64>, Range<i64>), JournalError> {
        let connection = &self.connection;
        let bounds = CHUNKS
            .bounds(connection)
            .and_then(|chunks| Ok((chunks, BATCHES.bounds(connection)?)));
        bounds.map_err(|error| self.error("read", error))
    }

    /// Implements [`Journal::recover`](c10d_store::journal::Journal::recover).
    pub(crate) fn recover(
        &self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        let position = self.header.position;
        let (_, batches) = self.bounds()?;
        let last_row = batches.end - 1;
        let batches = self.header.first_batch..batches.end.max(self.header.first_batch);
        let chunks = self.header.chunks.clone();
        let mut last_chunk = 0;
        let read = CHUNKS.read(&self.connection, chunks, 0, |number, bytes| {
            last_chunk = number;
            visit(Recovered::Chunk { position, bytes })
        });
        read.map_err(|error| {
            self.read_error(error, "snapshot", &format!("{last_chunk} chunks before it"))
        })?;
        let mut last = position;
        let read = BATCHES.read(&self.connection, batches, position, |number, bytes| {
            visit(Recovered::Batch {
                position: number,
                bytes,
            })?;
            last = number;
            Ok(())
        });
        read.map_err(|error| {
            let intact = format!("all before it, up to position {last}");
            self.read_error(error, "batch", &intact)
        })?;
        self.check_newest(last, last_row)?;
        Ok(last)
    }

    fn read_error(&self, error: ReadError<JournalError>, kind: &str, intact: &str) -> JournalError {
        let what = match error {
            ReadError::Visit(error) => return error,
            ReadError::Row(row) => {
                format!("row {row} of a {kind} is missing or not as it was written")
            }
            ReadError::Engine(error) => match self.error("read", error) {
                JournalError::Damaged { what, .. } => {
                    format!("a row of a {kind} cannot be read: {what}")
                }
                error => return error,
            },
        };
        damaged(&self.directory, format!("{what}; intact: {intact}"))
    }

    pub(crate) fn error(&self, operation: &'static str, error: rusqlite::Error) -> JournalError {
        engine_error(&self.directory, operation, error)
    }
}

fn connect(directory: &Directory) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(directory.database(), flags)?;
    connection.busy_timeout(LOCK_WAIT)?;
    // One thread does all writes explicitly, and checks their errors.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    for (name, value, expected) in SETTINGS {
        set(&connection, name, value)?;
        let found = setting(&connection, name)?;
        if found != expected {
            let what = format!("the setting {name} is {found}, not {expected}");
            return Err(rusqlite::Error::ToSqlConversionFailure(what.into()));
        }
    }
    Ok(connection)
}

fn set(connection: &Connection, name: &str, value: &str) -> rusqlite::Result<()> {
    // Some answer with a row, some do not.
    connection
        .pragma_update_and_check(None, name, value, |_| Ok(()))
        .or_else(|error| match error {
            rusqlite::Error::QueryReturnedNoRows => Ok(()),
            error => Err(error),
        })
}

fn setting(connection: &Connection, name: &str) -> rusqlite::Result<String> {
    connection.pragma_query_value(None, name, |row| {
        Ok(match row.get(0)? {
            rusqlite::types::Value::Integer(number) => number.to_string(),
            rusqlite::types::Value::Text(text) => text,
            other => format!("{other:?}"),
        })
    })
}

fn engine_error(
    directory: &Directory,
    operation: &'static str,
    error: rusqlite::Error,
) -> JournalError {
    use rusqlite::Error;
    // Of this thread's last system call that failed: SQLite says "disk I/O error" of everything.
    let system = io::Error::last_os_error();
    let place = directory.place();
    let is_cut_off =
        error.sqlite_error().map(|error| error.extended_code) == Some(ffi::SQLITE_IOERR_SHORT_READ);
    match (error.sqlite_error_code(), &error) {
        _ if is_cut_off => damaged(directory, "journal.db is cut off".to_owned()),
        (Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked), _) => JournalError::InUse {
            place,
            owner: directory.owner(),
        },
        (Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase), _)
        | (
            _,
            Error::QueryReturnedNoRows
            | Error::InvalidColumnType(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::FromSqlConversionFailure(..),
        ) => damaged(directory, error.to_string()),
        (Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen), _) => {
            directory.engine_error(operation, format!("{}: {system}", io_operation(&error)))
        }
        _ => directory.engine_error(operation, error),
    }
}

fn io_operation(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error().map(|error| error.extended_code) {
        Some(ffi::SQLITE_IOERR_READ) => "reading failed",
        Some(ffi::SQLITE_IOERR_WRITE) => "writing failed",
        Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC) => "syncing to the disk failed",
        Some(ffi::SQLITE_IOERR_TRUNCATE) => "truncating failed",
        Some(ffi::SQLITE_IOERR_LOCK) => "locking failed",
        Some(code) if code & 0xff == ffi::SQLITE_CANTOPEN => "opening a file failed",
        _ => "disk I/O error",
    }
}

pub(crate) fn damaged(directory: &Directory, what: String) -> JournalError {
    JournalError::Damaged {
        place: directory.place(),
        what,
    }
}
