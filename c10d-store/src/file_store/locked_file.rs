//! Opening a store file and holding its lock.
//!
//! The lock is `flock(2)`: advisory, on the whole file, released by the kernel when its owner dies.
//! It belongs to one opening of the file, so two threads that open the file for themselves exclude
//! each other like two processes.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use super::close_flag::CloseFlag;

/// How long a thread that found the lock taken sleeps: at first about as long as an operation holds
/// it, then longer, so that a lock which is held for long costs no CPU.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(50);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(10);

/// PyTorch's mode, before the process's mask.
const MODE: u32 = 0o644;

/// A file whose lock is held until this is dropped.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: File,
}

/// Why a lock was not had.
#[derive(Debug)]
pub(super) enum LockError {
    /// Others held it until the deadline.
    Busy,
    /// The store object was closed meanwhile.
    Closed,
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// For how long a lock is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience<'a> {
    pub(super) deadline: Deadline,
    /// Ends the wait early; `None` when nothing does.
    pub(super) closed: Option<&'a CloseFlag>,
}

/// Which file a path leads to, whatever its name.
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

/// Opens the file to read it, without a lock; `None` when there is none.
pub(super) fn open_to_read(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let Some(file) = present(File::open(path))? else {
        return Ok(None);
    };
    let metadata = regular(&file)?;
    Ok(Some((file, metadata)))
}

impl LockedFile {
    /// Locks a file so that nobody writes while it is read.
    pub(super) fn shared(file: File, patience: Patience<'_>) -> Result<Self, LockError> {
        lock(&file, File::try_lock_shared, patience)?;
        Ok(Self { file })
    }

    /// Opens the file to write it and locks out everybody else; `None` when there is no file and
    /// none is to be created.
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
                // With `create` it is the folder that is missing.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !create => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            let opened = regular(&file)?;
            lock(&file, File::try_lock, patience)?;
            let locked = Self { file };
            // Whoever held the lock may have removed the file; what is written to it now, nobody
            // would ever read.
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
        // Closing would not do: a duplicate of the descriptor, here or in a process that was just
        // forked, would keep the lock.
        if let Err(error) = self.file.unlock() {
            log::warn!("cannot unlock a store file: {error}");
        }
    }
}

fn lock(
    file: &File,
    try_lock: impl Fn(&File) -> Result<(), TryLockError>,
    Patience { deadline, closed }: Patience<'_>,
) -> Result<(), LockError> {
    let mut pause = LOCK_PAUSE_MIN;
    loop {
        match try_lock(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        if closed.is_some_and(CloseFlag::is_set) {
            return Err(LockError::Closed);
        }
        let now = Instant::now();
        if deadline.has_passed(now) {
            return Err(LockError::Busy);
        }
        let sleep = deadline
            .remaining(now)
            .map_or(pause, |left| pause.min(left));
        match closed {
            Some(closed) => closed.pause(sleep),
            None => thread::sleep(sleep),
        }
        pause = (pause * 2).min(LOCK_PAUSE_MAX);
    }
}

/// Turns "there is no such file" into `None`.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file's metadata. Only a regular file has a length to read up to; reading a pipe would block.
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
