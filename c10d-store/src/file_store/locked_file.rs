//! Opens a store file and holds its lock.
//!
//! The lock is flock(2): advisory, on the whole file, released by the kernel when its owner dies. It
//! belongs to an open file description, so two threads that each open the file exclude each other like
//! two processes.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, sleep};

/// The interval between attempts to lock: at first about as long as an operation holds the lock, then
/// longer, so that waiting for a lock held long costs little CPU.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(50);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(10);

/// PyTorch's file mode, before the umask.
const MODE: u32 = 0o644;

/// A file whose lock is held until this is dropped.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: File,
}

/// Why locking failed.
#[derive(Debug)]
pub(super) enum LockError {
    /// Other workers held the lock until the deadline.
    Busy,
    /// The store object was closed.
    Closed,
    /// The process does not wait any longer.
    Interrupted,
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience<'a> {
    pub(super) deadline: Deadline,
    /// The end of the store object.
    pub(super) closed: &'a Cancel,
    pub(super) cancel: &'a Cancel,
}

/// The identity of a file, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Opens the file for reading, without a lock; `None` if it is missing.
pub(super) fn open_to_read(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let Some(file) = present(File::open(path))? else {
        return Ok(None);
    };
    let metadata = regular(&file)?;
    Ok(Some((file, metadata)))
}

impl LockedFile {
    /// Takes the shared lock, which excludes writers.
    pub(super) fn shared(file: File, patience: Patience<'_>) -> Result<Self, LockError> {
        lock(&file, File::try_lock_shared, patience)?;
        Ok(Self { file })
    }

    /// Opens the file for writing and takes the exclusive lock; `None` if the file is missing and `create`
    /// is false.
    pub(super) fn exclusive(
        path: &Path,
        create: bool,
        patience: Patience<'_>,
    ) -> Result<Option<Self>, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).mode(MODE);
        loop {
            let file = match options.open(path) {
                Ok(file) => file,
                // With `create`, the directory is missing, which is an error.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !create => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            let opened = regular(&file)?;
            lock(&file, File::try_lock, patience)?;
            let locked = Self { file };
            // The previous owner of the lock may have removed the file: a write to it would be lost.
            let at_path = present(fs::metadata(path))?;
            if at_path.is_some_and(|at_path| Identity::of(&at_path) == Identity::of(&opened)) {
                return Ok(Some(locked));
            }
            if patience.deadline.has_passed(Instant::now()) {
                return Err(LockError::Busy);
            }
        }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing is not enough: a duplicate of the descriptor, here or in a forked process, would keep
        // the lock.
        if let Err(error) = self.file.unlock() {
            log::warn!("cannot unlock a store file: {error}");
        }
    }
}

fn lock(
    file: &File,
    try_lock: impl Fn(&File) -> Result<(), TryLockError>,
    Patience {
        deadline,
        closed,
        cancel,
    }: Patience<'_>,
) -> Result<(), LockError> {
    let mut pause = LOCK_PAUSE_MIN;
    loop {
        match try_lock(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        let now = Instant::now();
        if deadline.has_passed(now) {
            return Err(LockError::Busy);
        }
        let left = deadline.remaining(now).unwrap_or(pause);
        if sleep(pause.min(left), [closed, cancel]).is_err() {
            return Err(if closed.is_cancelled() {
                LockError::Closed
            } else {
                LockError::Interrupted
            });
        }
        pause = (pause * 2).min(LOCK_PAUSE_MAX);
    }
}

/// Turns `NotFound` into `None`.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The metadata of a regular file. Other files have no length, and reading a pipe would block.
fn regular(file: &File) -> io::Result<Metadata> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    Ok(metadata)
}
