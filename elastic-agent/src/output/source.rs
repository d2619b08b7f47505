//! The output of one worker, as an echo thread reads it: a growing log file, or a pipe.

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::fstatvfs;
use rustix::io::{ioctl_fionbio, ioctl_fionread};

use super::console::Sink;
use super::last_bytes::LastBytes;
use super::lines::LineSplitter;

/// A file that also gets the lines that contain one of some texts.
#[derive(Debug)]
pub(crate) struct LineCopy {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) filters: Vec<String>,
    /// The last line could not be written.
    pub(crate) is_failing: bool,
}

impl LineCopy {
    fn take(&mut self, prefix: &str, line: &str) {
        if !self.filters.iter().any(|filter| line.contains(filter)) {
            return;
        }
        let written = self.file.write_all(format!("{prefix}{line}\n").as_bytes());
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        if let Err(error) = written
            && !was_failing
        {
            log::warn!(
                "cannot write filtered output to {}: {error}",
                self.path.display()
            );
        }
    }
}

/// A log file that is shown line by line while its worker writes to it.
#[derive(Debug)]
pub(crate) struct FollowedFile {
    path: PathBuf,
    file: File,
    prefix: String,
    lines: LineSplitter,
    bytes_read: u64,
    /// How many bytes are left to read; `None` until the file is finished.
    bytes_left: Option<u64>,
}

impl FollowedFile {
    /// Opens the file, to be read from its start.
    ///
    /// # Errors
    /// Those of the system, as for a file that does not exist.
    pub(crate) fn open(path: PathBuf, prefix: String) -> io::Result<Self> {
        Ok(Self {
            file: File::open(&path)?,
            path,
            prefix,
            lines: LineSplitter::default(),
            bytes_read: 0,
            bytes_left: None,
        })
    }

    /// Whether its file system has no block left for users that are not privileged. Blocks while the file system does.
    pub(super) fn has_no_space(&self) -> bool {
        fstatvfs(&self.file).is_ok_and(|it| it.f_blocks > 0 && it.f_bavail == 0)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Limits reading to the present length, as a process may keep writing.
    pub(super) fn finish(&mut self) {
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        self.bytes_left = Some(length.saturating_sub(self.bytes_read));
    }

    /// Reads once; returns whether there may be more.
    pub(super) fn read_once(
        &mut self,
        buffer: &mut [u8],
        sink: &mut Sink,
        copy: &mut Option<LineCopy>,
    ) -> bool {
        let room = room(buffer, self.bytes_left);
        let count = match self.file.read(&mut buffer[..room]) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(error) => {
                log::warn!("cannot show the log file {}: {error}", self.path.display());
                0
            }
        };
        self.bytes_read += count as u64;
        if let Some(left) = &mut self.bytes_left {
            *left -= count as u64;
        }
        let prefix = &self.prefix;
        self.lines.push(&buffer[..count], |line| {
            sink.line(prefix, line);
            if let Some(copy) = copy {
                copy.take(prefix, line);
            }
        });
        sink.flush();
        count > 0
    }

    /// Shows the last line if it has no line end.
    pub(super) fn end(&mut self, sink: &mut Sink, copy: &mut Option<LineCopy>) {
        if let Some(line) = self.lines.finish() {
            sink.unfinished_line(&self.prefix, &line);
            if let Some(copy) = copy {
                copy.take(&self.prefix, &line);
            }
            sink.flush();
        }
    }
}

/// The standard error of a worker: shown unchanged or dropped, with its last bytes kept.
#[derive(Debug)]
pub(crate) struct CapturedPipe {
    pipe: PipeReader,
    is_shown: bool,
    last: Arc<Mutex<LastBytes>>,
    bytes_left: Option<u64>,
}

impl CapturedPipe {
    /// Takes the read end of the pipe, and makes it non-blocking.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn new(
        pipe: PipeReader,
        is_shown: bool,
        last: Arc<Mutex<LastBytes>>,
    ) -> io::Result<Self> {
        // Only this end: with a non-blocking write end the worker would lose output.
        ioctl_fionbio(&pipe, true)?;
        Ok(Self {
            pipe,
            is_shown,
            last,
            bytes_left: None,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Limits reading to what the pipe holds now: a process that the worker left behind may keep it open
    /// and keep writing.
    pub(super) fn finish(&mut self) {
        self.bytes_left = Some(ioctl_fionread(&self.pipe).unwrap_or(0));
    }

    /// Reads once without waiting.
    pub(super) fn read_once(&mut self, buffer: &mut [u8], sink: &mut Sink) -> PipeState {
        let room = room(buffer, self.bytes_left);
        let count = match self.pipe.read(&mut buffer[..room]) {
            Ok(0) => return PipeState::Ended,
            Ok(count) => count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return PipeState::Empty,
                io::ErrorKind::Interrupted => return PipeState::MayHaveMore,
                _ => {
                    log::warn!("cannot read a worker's standard error: {error}");
                    return PipeState::Ended;
                }
            },
        };
        if let Some(left) = &mut self.bytes_left {
            *left -= count as u64;
        }
        // A panic in `push` leaves the bytes valid.
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(&buffer[..count]);
        if self.is_shown {
            sink.raw(&buffer[..count]);
            sink.flush();
        }
        PipeState::MayHaveMore
    }
}

/// The state of a pipe after a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PipeState {
    MayHaveMore,
    Empty,
    Ended,
}

/// How many bytes of the buffer may be filled.
fn room(buffer: &[u8], bytes_left: Option<u64>) -> usize {
    let left = bytes_left.map_or(usize::MAX, |left| {
        usize::try_from(left).unwrap_or(usize::MAX)
    });
    buffer.len().min(left)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn a_growing_file_is_read_up_to_its_length_when_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut options = OpenOptions::new();
        let mut log = options.create(true).append(true).open(&path).unwrap();
        let mut followed = FollowedFile::open(path, String::new()).unwrap();
        let mut sink = Sink::new("test", Box::new(io::sink()), Arc::default());
        let mut buffer = [0; 4];
        log.write_all(b"123456").unwrap();
        assert!(followed.read_once(&mut buffer, &mut sink, &mut None));
        log.write_all(b"789").unwrap();
        followed.finish();
        while followed.read_once(&mut buffer, &mut sink, &mut None) {
            log.write_all(b"more").unwrap();
        }
        assert_eq!(followed.bytes_read, 9);
        assert_eq!(followed.lines.finish().as_deref(), Some("123456789"));
    }

    #[test]
    fn a_copy_that_cannot_be_written_does_not_stop_the_console() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "a 1\nb\na 2\n").unwrap();
        let mut followed = FollowedFile::open(path, "[0]:".to_owned()).unwrap();
        let (mut console, shown) = io::pipe().unwrap();
        let mut sink = Sink::new("test", Box::new(shown), Arc::default());
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut copy = Some(LineCopy {
            path: "/dev/full".into(),
            file: full,
            filters: vec!["a".to_owned()],
            is_failing: false,
        });
        assert!(followed.read_once(&mut [0; 64], &mut sink, &mut copy));
        drop(sink);
        let mut text = String::new();
        console.read_to_string(&mut text).unwrap();
        assert_eq!(text, "[0]:a 1\n[0]:b\n[0]:a 2\n");
        assert!(copy.unwrap().is_failing);
    }

    #[test]
    fn an_open_pipe_is_read_up_to_its_content_when_finished() {
        let (near, mut far) = io::pipe().unwrap();
        let last = Arc::default();
        let mut pipe = CapturedPipe::new(near, false, Arc::clone(&last)).unwrap();
        let mut sink = Sink::new("test", Box::new(io::sink()), Arc::default());
        let mut buffer = [0; 4];
        assert_eq!(pipe.read_once(&mut buffer, &mut sink), PipeState::Empty);
        far.write_all(b"1234567").unwrap();
        pipe.finish();
        while pipe.read_once(&mut buffer, &mut sink) != PipeState::Ended {
            far.write_all(b"more").unwrap();
        }
        assert_eq!(last.lock().unwrap().to_vec(), b"1234567");
    }
}
