//! The directory of a journal, its files, and the description of the process that serves it.

use std::error::Error;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{self, Path, PathBuf};

use c10d_socket::printable;
use c10d_store::journal::JournalError;
use rustix::fs::OFlags;

/// A longer description of an owner is cut off.
const OWNER_BYTES_MAX: u64 = 256;

/// The paths of a journal's files.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Absolute, as SQLite takes a path that begins with `file:` for a URI.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let path = path::absolute(path)?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Describes the place of the journal, for messages.
    pub(crate) fn place(&self) -> String {
        format!("{} (SQLite)", self.path.display())
    }

    /// A failure of the system or of SQLite.
    pub(crate) fn engine_error(
        &self,
        operation: &'static str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> JournalError {
        JournalError::Engine {
            operation,
            place: self.place(),
            source: source.into(),
        }
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path.join("journal.db")
    }

    /// SQLite chooses this name.
    pub(crate) fn wal(&self) -> PathBuf {
        self.path.join("journal.db-wal")
    }

    pub(crate) fn newest(&self) -> PathBuf {
        self.path.join("newest")
    }

    fn owner_file(&self) -> PathBuf {
        self.path.join("owner")
    }

    /// Returns the paths of all files that this program or SQLite opens.
    pub(crate) fn files(&self) -> [PathBuf; 6] {
        let of_sqlite = |end| self.path.join(format!("journal.db{end}"));
        [
            self.database(),
            self.wal(),
            of_sqlite("-shm"),
            of_sqlite("-journal"),
            self.newest(),
            self.owner_file(),
        ]
    }

    /// Makes the directory and an empty database file if they are missing, for this user only.
    pub(crate) fn create(&self) -> io::Result<()> {
        let is_new = !self.path.exists();
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.path)?;
        if make_private(&self.database())? {
            // Makes the name of the file durable: SQLite does so for its WAL only.
            File::open(&self.path)?.sync_all()?;
        }
        match self.path.canonicalize()?.parent() {
            Some(parent) if is_new => File::open(parent)?.sync_all(),
            _ => Ok(()),
        }
    }

    /// Opens a file of this program to read and to write it, or makes it.
    pub(crate) fn open_private(&self, path: &Path) -> io::Result<File> {
        let is_new = make_private(path)?;
        let file = private().read(true).open(path)?;
        if is_new {
            File::open(&self.path)?.sync_all()?;
        }
        Ok(file)
    }

    /// The database and its log as they are now, to [find](Places::moved) that they were moved or deleted.
    pub(crate) fn places(&self) -> io::Result<Places> {
        let place = |path: PathBuf| -> io::Result<_> {
            let metadata = fs::symlink_metadata(&path)?;
            Ok((path, metadata.dev(), metadata.ino()))
        };
        Ok(Places([place(self.database())?, place(self.wal())?]))
    }

    /// The length of a file, 0 if it is missing.
    pub(crate) fn bytes_of(path: &Path) -> io::Result<u64> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Notes that this process serves the journal, for the messages of others.
    pub(crate) fn write_owner(&self, since: &str) -> io::Result<()> {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let owner = format!("process {} on {host} since {since}\n", std::process::id());
        let mut file = self.open_private(&self.owner_file())?;
        file.set_len(0)?;
        io::Write::write_all(&mut file, owner.as_bytes())
    }

    /// The process that served the journal last, or serves it.
    pub(crate) fn owner(&self) -> Option<String> {
        let mut text = Vec::new();
        let file = File::open(self.owner_file()).ok()?;
        file.take(OWNER_BYTES_MAX).read_to_end(&mut text).ok()?;
        let text = printable(text.trim_ascii(), OWNER_BYTES_MAX as usize).to_string();
        (!text.is_empty()).then_some(text)
    }
}

/// Files by path, device and inode.
#[derive(Debug)]
pub(crate) struct Places([(PathBuf, u64, u64); 2]);

impl Places {
    /// The name of a file that is not at its path any more.
    pub(crate) fn moved(&self) -> io::Result<Option<String>> {
        for (path, device, inode) in &self.0 {
            match fs::symlink_metadata(path) {
                Ok(it) if (it.dev(), it.ino()) == (*device, *inode) => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(_) | Err(_) => {
                    let name = path.file_name().unwrap_or_default();
                    return Ok(Some(name.display().to_string()));
                }
            }
        }
        Ok(None)
    }
}

/// Makes an empty file, unless there is one, and returns whether it was missing. Never opens an existing file: closing it
/// would drop the locks that this process has on it.
fn make_private(path: &Path) -> io::Result<bool> {
    match private().create_new(true).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn private() -> OpenOptions {
    let mut options = File::options();
    let flags = OFlags::NOFOLLOW.bits() as i32;
    options.write(true).mode(0o600).custom_flags(flags);
    options
}
