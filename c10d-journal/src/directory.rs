//! The directory of a journal, its files, and the name of the process that serves it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{self, Path, PathBuf};

use c10d_socket::printable;

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

    /// For messages.
    pub(crate) fn place(&self) -> String {
        format!("{} (SQLite)", self.path.display())
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path.join("journal.db")
    }

    /// SQLite chooses this name.
    pub(crate) fn wal(&self) -> PathBuf {
        self.path.join("journal.db-wal")
    }

    fn owner_file(&self) -> PathBuf {
        self.path.join("owner")
    }

    /// Makes the directory and an empty database file if they are missing, for this user only.
    pub(crate) fn create(&self) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.path)?;
        // Never opens a file that exists: closing it would drop the locks that this process has on it.
        match private().create_new(true).open(self.database()) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(error),
        }
        self.sync()?;
        match self.path.canonicalize()?.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Makes the names of the files durable: SQLite does so for its WAL only.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
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
        let path = self.owner_file();
        let mut file = private().create(true).truncate(true).open(path)?;
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

fn private() -> OpenOptions {
    let mut options = File::options();
    options.write(true).mode(0o600);
    options
}
