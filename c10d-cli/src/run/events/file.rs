//! A file with one JSON object per line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

/// Appends lines, from any thread and without a lock. Several launchers may append to one file of this machine: each
/// line is one write.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
    has_failed: AtomicBool,
}

impl EventFile {
    /// Opens the file; a new one can only be read by this user.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Appends a line. Logs the first failure: the job goes on without its events.
    pub(super) fn write(&self, line: &Value) {
        let text = format!("{line}\n");
        if let Err(error) = (&self.file).write_all(text.as_bytes())
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            log::warn!("cannot write events to {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_appended_to_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        for number in 0..2 {
            let file = EventFile::open(&path).unwrap();
            file.write(&json!({ "n": number, "text": "a\nb" }));
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"n\":0,\"text\":\"a\\nb\"}\n{\"n\":1,\"text\":\"a\\nb\"}\n"
        );
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(EventFile::open(&folder.path().join("none/events")).is_err());
    }
}
