//! The reads and writes of one store object on its file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, Process, sleep};

use super::locked_file::{LockError, LockedFile, Patience, open_to_read};
use super::record::{Entries, TooLong};
use super::replica::{Replica, Tail};
use crate::error::{ErrorContext, Operation, Outcome, StoreError};

/// The least time that an operation waits for the file's lock. Other workers often hold the lock for
/// microseconds, so an operation with a zero timeout would otherwise fail at random.
const LOCK_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// A call on a file store: its operation, keys, start time and timeout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    operation: Operation,
    keys: &'a [&'a str],
    started: Instant,
    timeout: Option<Duration>,
    cancel: &'a Cancel,
}

/// A store file and the records read from it.
#[derive(Debug)]
pub(super) struct StoreFile {
    path: PathBuf,
    /// Locked after the file's lock, and not while waiting for that, so that threads that need only the
    /// replica are not delayed.
    replica: Mutex<Replica>,
    closed: Cancel,
    /// The process of the store: only this process has the threads that hold the locks.
    process: Process,
}

/// The exclusively locked file, with all its records read.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    store_file: &'a StoreFile,
    call: &'a Call<'a>,
    replica: MutexGuard<'a, Replica>,
    file: LockedFile,
}

impl StoreFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            replica: Mutex::new(Replica::default()),
            closed: Cancel::new(),
            process: Process::this(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The store's name in errors.
    pub(super) fn label(&self) -> String {
        format!("file store {}", self.path.display())
    }

    /// Fails the calls in progress and all later calls, except [`Operation::Close`], which dropping the store object
    /// still needs.
    pub(super) fn close(&self) {
        if self.process.is_this() {
            self.closed.cancel();
        }
    }

    /// Whether this is a forked child of the process that opened it.
    pub(super) fn is_of_other_process(&self) -> bool {
        !self.process.is_this()
    }

    /// Fails in a forked child.
    pub(super) fn check_process(&self, call: &Call<'_>) -> Result<(), StoreError> {
        self.process.check().map_err(|source| {
            let context = self.context(call, call.keys.iter().copied());
            StoreError::OtherProcess { context, source }
        })
    }

    /// Fails if the store object has been closed, and in a forked child.
    pub(super) fn check_not_closed(&self, call: &Call<'_>) -> Result<(), StoreError> {
        self.check_process(call)?;
        if call.closed_by(&self.closed).is_cancelled() {
            return Err(self.closed_error(call));
        }
        Ok(())
    }

    /// Sleeps between two polls of the file. Fails early if the store object is closed or the call is cancelled.
    pub(super) fn pause(&self, call: &Call<'_>, duration: Duration) -> Result<(), StoreError> {
        sleep(duration, [&self.closed, call.cancel]).or_else(|_| {
            self.check_not_closed(call)?;
            Err(self.interrupted_error(call))
        })
    }

    /// Runs `look` on the current contents. A missing file is empty.
    pub(super) fn read<T>(
        &self,
        call: &Call<'_>,
        look: impl FnOnce(&Entries) -> T,
    ) -> Result<T, StoreError> {
        self.check_not_closed(call)?;
        // Opened each time, because on a network file system opening makes the length current.
        let opened = open_to_read(&self.path).map_err(|error| self.file_error(call, error))?;
        let Some((file, metadata)) = opened else {
            let mut replica = self.replica();
            replica.clear();
            return Ok(look(replica.entries()));
        };
        {
            // A file that has not grown needs no lock: its last record was read completely.
            let replica = self.replica();
            if replica.is_current(&metadata) {
                return Ok(look(replica.entries()));
            }
        }
        let file = LockedFile::shared(file, self.patience(call))
            .map_err(|error| self.lock_error(call, error))?;
        let mut replica = self.replica();
        let tail = replica
            .refresh(&file)
            .map_err(|error| self.file_error(call, error))?;
        match tail {
            // A torn record does not count as written; the next writer truncates it.
            Tail::Whole | Tail::Torn { .. } => Ok(look(replica.entries())),
            Tail::Foreign { offset } => Err(self.corrupt(call, offset)),
        }
    }

    /// Runs `change` under the exclusive lock. Creates a missing file.
    pub(super) fn write<T>(
        &self,
        call: &Call<'_>,
        change: impl FnOnce(&mut Writer<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.check_not_closed(call)?;
        let file = LockedFile::exclusive(&self.path, true, self.patience(call))
            .map_err(|error| self.lock_error(call, error))?
            .expect("the file is created when it is missing");
        change(&mut self.writer(call, file)?)
    }

    /// Like [`write`](Self::write), but leaves a missing file missing and returns `None`.
    pub(super) fn write_if_present<T>(
        &self,
        call: &Call<'_>,
        change: impl FnOnce(&mut Writer<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        self.check_not_closed(call)?;
        let file = LockedFile::exclusive(&self.path, false, self.patience(call))
            .map_err(|error| self.lock_error(call, error))?;
        match file {
            None => Ok(None),
            Some(file) => change(&mut self.writer(call, file)?).map(Some),
        }
    }

    fn writer<'a>(
        &'a self,
        call: &'a Call<'a>,
        file: LockedFile,
    ) -> Result<Writer<'a>, StoreError> {
        let mut replica = self.replica();
        let tail = replica
            .refresh(&file)
            .map_err(|error| self.file_error(call, error))?;
        match tail {
            Tail::Whole => {}
            Tail::Torn { offset, bytes } => {
                // We hold the lock of all writers, so the writer of this record has died. Truncate at
                // once: PyTorch's readers spin on a torn record indefinitely.
                log::warn!(
                    "{}: truncating {bytes} bytes of a killed writer at byte {offset}",
                    self.label()
                );
                file.set_len(offset)
                    .map_err(|error| self.file_error(call, error))?;
            }
            Tail::Foreign { offset } => return Err(self.corrupt(call, offset)),
        }
        Ok(Writer {
            store_file: self,
            call,
            replica,
            file,
        })
    }

    fn replica(&self) -> MutexGuard<'_, Replica> {
        // A replica is always a whole number of records, even if a thread panicked (out of memory).
        self.replica.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn patience<'a>(&'a self, call: &'a Call<'_>) -> Patience<'a> {
        Patience {
            deadline: call.lock_deadline(),
            closed: call.closed_by(&self.closed),
            cancel: call.cancel,
        }
    }

    pub(super) fn context<'a>(
        &self,
        call: &Call<'_>,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> ErrorContext {
        let elapsed = call.started.elapsed();
        ErrorContext::new(call.operation, keys, self.label(), elapsed)
    }

    fn lock_error(&self, call: &Call<'_>, error: LockError) -> StoreError {
        match error {
            LockError::Io(error) => self.file_error(call, error),
            LockError::Closed => self.closed_error(call),
            LockError::Interrupted => self.interrupted_error(call),
            LockError::Busy => {
                let mut context = self.context(call, call.keys.iter().copied());
                context.store.push_str(" (locked by another worker)");
                StoreError::timeout(context, call.lock_timeout())
            }
        }
    }

    /// The process was interrupted while it waited. The call wrote nothing.
    fn interrupted_error(&self, call: &Call<'_>) -> StoreError {
        let context = self.context(call, call.keys.iter().copied());
        StoreError::interrupted(context, Outcome::NotSent)
    }

    fn file_error(&self, call: &Call<'_>, source: io::Error) -> StoreError {
        StoreError::File {
            context: self.context(call, call.keys.iter().copied()),
            path: self.path.clone(),
            source,
        }
    }

    fn closed_error(&self, call: &Call<'_>) -> StoreError {
        StoreError::Closed {
            context: self.context(call, call.keys.iter().copied()),
        }
    }

    fn corrupt(&self, call: &Call<'_>, offset: u64) -> StoreError {
        StoreError::CorruptFile {
            context: self.context(call, call.keys.iter().copied()),
            path: self.path.clone(),
            offset,
            detail: "not a record of a store",
        }
    }

    pub(super) fn too_long(&self, call: &Call<'_>, too_long: &TooLong) -> StoreError {
        StoreError::LimitExceeded {
            context: self.context(call, call.keys.iter().copied()),
            what: too_long.what,
            actual: too_long.actual,
            limit: too_long.limit,
        }
    }
}

impl Writer<'_> {
    pub(super) fn entries(&self) -> &Entries {
        self.replica.entries()
    }

    /// Appends whole records, all or none.
    pub(super) fn append(&mut self, records: &[u8]) -> Result<(), StoreError> {
        self.replica
            .append(&self.file, records)
            .map_err(|error| self.store_file.file_error(self.call, error))
    }

    /// Removes the file. Writers that wait for its lock notice and create a new file.
    pub(super) fn remove_file(&self) -> Result<(), StoreError> {
        fs::remove_file(&self.store_file.path)
            .map_err(|error| self.store_file.file_error(self.call, error))
    }
}

impl<'a> Call<'a> {
    pub(super) fn begin(
        operation: Operation,
        keys: &'a [&'a str],
        timeout: Option<Duration>,
        cancel: &'a Cancel,
    ) -> Self {
        Self {
            operation,
            keys,
            started: Instant::now(),
            timeout,
            cancel,
        }
    }

    pub(super) const fn keys(&self) -> &'a [&'a str] {
        self.keys
    }

    pub(super) const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.started, self.timeout)
    }

    /// The cancel that interrupts this call when the store object is closed; [`Operation::Close`] has none.
    fn closed_by<'c>(&self, closed: &'c Cancel) -> &'c Cancel {
        match self.operation {
            Operation::Close => &Cancel::NEVER,
            _ => closed,
        }
    }

    fn lock_timeout(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.max(LOCK_TIMEOUT_MIN))
    }

    fn lock_deadline(&self) -> Deadline {
        Deadline::after(self.started, self.lock_timeout())
    }
}
