//! A copy of a journal that this process cannot write, for example on a read-only file system: SQLite reads a
//! write-ahead log only where it can write.

use std::env;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use c10d_store::journal::JournalError;
use rustix::fs::{Access, FlockOperation, access, fcntl_lock};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::directory::Directory;

/// Removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) directory: Directory,
    _folder: TempDir,
}

impl Copy {
    /// Copies the database and its log, while no server has them open, if this process cannot write them.
    pub(crate) fn if_needed(directory: &Directory) -> Result<Option<Self>, JournalError> {
        let database = directory.database();
        let is_writable = [directory.path(), &database].into_iter().all(|path| {
            let writable = access(path, Access::WRITE_OK);
            !matches!(writable, Err(Errno::ROFS | Errno::ACCESS | Errno::PERM))
        });
        if is_writable {
            return Ok(None);
        }
        let file = File::open(database).map_err(|error| directory.engine_error("open", error))?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::ACCESS | Errno::AGAIN) => {
                return Err(JournalError::InUse {
                    place: directory.place(),
                    owner: directory.owner(),
                });
            }
            Err(error) => return Err(directory.engine_error("lock", error)),
        }
        Self::make(directory, file).map(Some).map_err(|error| {
            let what = format!(
                "it cannot be written, so that it is read from a copy, which cannot be made in {}: {error}",
                env::temp_dir().display()
            );
            directory.engine_error("open", what)
        })
    }

    fn make(directory: &Directory, database: File) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("c10d-").tempdir()?;
        let copy = Directory::new(folder.path())?;
        copy.create()?;
        let into = |mut from: File, path: PathBuf| {
            io::copy(&mut from, &mut copy.open_private(&path)?).map(|_| ())
        };
        match File::open(directory.wal()) {
            Ok(wal) => into(wal, copy.wal())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Last, because closing this file drops the lock.
        into(database, copy.database())?;
        Ok(Self {
            directory: copy,
            _folder: folder,
        })
    }
}
