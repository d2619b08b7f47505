//! The named pipe into which workers write timers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::sys;

/// A named pipe that only this user can open.
#[derive(Debug)]
pub(super) struct TimerPipe {
    reader: File,
    /// Never written to: with a writer, the pipe does not end whenever a worker closes it.
    _writer: File,
}

/// A new name like PyTorch's in this directory.
pub(super) fn new_path(place: &Path) -> PathBuf {
    place.join(format!("watchdog_timer_{:032x}", fastrand::u128(..)))
}

impl TimerPipe {
    /// Makes the pipe, in place of one that an earlier launcher has left. Another kind of file stays, and is an error.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|known| known.file_type().is_fifo()) {
            fs::remove_file(path)?;
        }
        sys::make_fifo(path)?;
        // Opening it without waiting for the other end.
        let options = |is_reader: bool| {
            let mut options = OpenOptions::new();
            options.read(is_reader).write(!is_reader);
            options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
            options
        };
        let opened = options(true).open(path).and_then(|reader| {
            if !reader.metadata()?.file_type().is_fifo() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let _writer = options(false).open(path)?;
            Ok(Self { reader, _writer })
        });
        if opened.is_err() {
            // It is no longer of use; the first error says why.
            let _ = fs::remove_file(path);
        }
        opened
    }

    /// Reads without waiting; empty if there is nothing at the moment.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn read<'b>(&mut self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        loop {
            match self.reader.read(buffer) {
                Ok(count) => return Ok(&buffer[..count]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(&[]),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

impl AsFd for TimerPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn any_number_of_writers_can_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let mut pipe = TimerPipe::create(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let mut buffer = [0; 16];
        for text in [b"a\n", b"b\n"] {
            assert_eq!(pipe.read(&mut buffer).unwrap(), b"");
            let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
            writer.write_all(text).unwrap();
            drop(writer);
            assert_eq!(pipe.read(&mut buffer).unwrap(), text);
        }
        assert_eq!(pipe.read(&mut buffer).unwrap(), b"");
    }

    #[test]
    fn only_a_pipe_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        drop(TimerPipe::create(&path).unwrap());
        drop(TimerPipe::create(&path).unwrap());
        let file = folder.path().join("file");
        fs::write(&file, "kept").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for other in [&file, &link] {
            let error = TimerPipe::create(other).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{other:?}");
        }
        assert_eq!(fs::read(file).unwrap(), b"kept");
    }

    #[test]
    fn names_differ() {
        let place = Path::new("/tmp");
        assert_ne!(new_path(place), new_path(place));
    }
}
