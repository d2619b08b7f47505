//! Files that workers write or use: bounded reads of files that a worker may have replaced by a pipe or a directory, and
//! places for temporary files.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Reads a whole file of at most `bytes_max` bytes.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::FileTooLarge`] for a longer file, and
/// [`io::ErrorKind::InvalidInput`] if it is not a regular file: reading a pipe could block indefinitely.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    // One more than allowed distinguishes a file that is too long from a file that just fits.
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {bytes_max} bytes"),
        ));
    }
    Ok(bytes)
}

/// Reads the last `bytes_max` bytes of a file, or all of a shorter one.
///
/// # Errors
/// The errors of [`read`], without `FileTooLarge`.
pub(crate) fn read_end(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn open(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a pipe blocks until another process opens it for writing.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    Ok(file)
}

/// TMPDIR, and then the places that nearly every Linux system has: memory and `/tmp`.
fn places() -> [PathBuf; 3] {
    [env::temp_dir(), "/dev/shm".into(), "/tmp".into()]
}

/// Creates a file or directory in the first place where that succeeds: a full or read-only TMPDIR need not stop a job.
///
/// # Errors
/// The error of TMPDIR.
pub(crate) fn create_temporary<T>(mut create: impl FnMut(&Path) -> io::Result<T>) -> io::Result<T> {
    let mut first = None;
    for place in places() {
        match create(&place) {
            Ok(created) => return Ok(created),
            Err(error) => {
                log::debug!(
                    "cannot use {} for temporary files: {error}",
                    place.display()
                );
                first.get_or_insert(error);
            }
        }
    }
    Err(first.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use crate::files::*;

    #[test]
    fn a_file_that_is_too_long_is_refused_but_its_end_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(read(&path, 10).unwrap(), b"0123456789");
        let error = read(&path, 9).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_end(&path, 3).unwrap(), b"789");
        assert_eq!(read_end(&path, 99).unwrap(), b"0123456789");
    }

    #[test]
    fn a_pipe_or_a_directory_is_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for path in [&pipe, folder.path()] {
            let error = read(path, 10).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
        let error = read_end(&folder.path().join("none"), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
