//! A pipe to which a worker writes.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use rustix::io::{ioctl_fionbio, ioctl_fionread};

use super::console::Sink;
use crate::threads::lock;

/// The end that is read, and where the last bytes are kept.
#[derive(Debug)]
pub(super) struct WorkerPipe {
    pipe: PipeReader,
    last: Option<Arc<Mutex<LastBytes>>>,
    /// How many bytes are left to read; `None` until the pipe is finished.
    bytes_left: Option<usize>,
}

impl WorkerPipe {
    /// Makes the pipe non-blocking.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn new(pipe: PipeReader, last: Option<Arc<Mutex<LastBytes>>>) -> io::Result<Self> {
        // Only this end is non-blocking: with a non-blocking write end, the worker would lose output.
        ioctl_fionbio(&pipe, true)?;
        Ok(Self {
            pipe,
            last,
            bytes_left: None,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Limits reading to the present content of the pipe, because a process that the worker left behind
    /// may keep it open and keep writing.
    pub(super) fn finish(&mut self) {
        let held = ioctl_fionread(&self.pipe).unwrap_or(0);
        self.bytes_left = Some(usize::try_from(held).unwrap_or(usize::MAX));
    }

    /// Reads once without waiting, to the start of the buffer.
    pub(super) fn read_once(&mut self, buffer: &mut [u8]) -> PipeState {
        let room = self.bytes_left.unwrap_or(usize::MAX).min(buffer.len());
        let count = match self.pipe.read(&mut buffer[..room]) {
            Ok(0) => {
                if let Some(last) = &self.last {
                    lock(last).has_ended = true;
                }
                return PipeState::Ended;
            }
            Ok(count) => count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return PipeState::Empty,
                io::ErrorKind::Interrupted => return PipeState::Read(0),
                _ => {
                    log::warn!("cannot read the output of a worker: {error}");
                    return PipeState::Ended;
                }
            },
        };
        if let Some(left) = &mut self.bytes_left {
            *left -= count;
        }
        if let Some(last) = &self.last {
            // A panic in `push` leaves the bytes valid.
            lock(last).push(&buffer[..count]);
        }
        PipeState::Read(count)
    }
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PipeState {
    /// This many bytes; there may be more.
    Read(usize),
    Empty,
    Ended,
}

/// The standard error of a worker: shown unchanged or dropped, with its last bytes kept.
#[derive(Debug)]
pub(crate) struct CapturedPipe {
    pub(super) pipe: WorkerPipe,
    is_shown: bool,
}

impl CapturedPipe {
    /// Takes the end of the pipe that is read.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn new(
        pipe: PipeReader,
        is_shown: bool,
        last: Arc<Mutex<LastBytes>>,
    ) -> io::Result<Self> {
        let pipe = WorkerPipe::new(pipe, Some(last))?;
        Ok(Self { pipe, is_shown })
    }

    /// Reads once without waiting.
    pub(super) fn read_once(&mut self, buffer: &mut [u8], sink: &mut Sink) -> PipeState {
        let state = self.pipe.read_once(buffer);
        if let PipeState::Read(count) = state
            && self.is_shown
        {
            sink.raw(&buffer[..count]);
            sink.flush();
        }
        state
    }
}

/// How much of a worker's standard error is kept for the report on failures: a screen of text.
pub(crate) const LAST_BYTES_MAX: usize = 4 << 10;

/// Keeps the last [`LAST_BYTES_MAX`] pushed bytes.
#[derive(Default)]
pub(crate) struct LastBytes {
    bytes: Vec<u8>,
    has_ended: bool,
}

impl std::fmt::Debug for LastBytes {
    /// Shows lengths instead of bytes, which can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastBytes")
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

impl LastBytes {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LAST_BYTES_MAX)..];
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(LAST_BYTES_MAX);
        self.bytes.drain(..surplus);
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// Whether some bytes were pushed, or the end of the pipe was read.
    pub(crate) fn is_known(&self) -> bool {
        self.has_ended || !self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_open_pipe_is_read_up_to_its_content_when_finished() {
        let (near, mut far) = io::pipe().unwrap();
        let last = Arc::default();
        let mut pipe = CapturedPipe::new(near, false, Arc::clone(&last)).unwrap();
        let mut sink = Sink::new("test", Box::new(io::sink()), Arc::default());
        let mut buffer = [0; 4];
        assert_eq!(pipe.read_once(&mut buffer, &mut sink), PipeState::Empty);
        far.write_all(b"1234567").unwrap();
        pipe.pipe.finish();
        while pipe.read_once(&mut buffer, &mut sink) != PipeState::Ended {
            far.write_all(b"more").unwrap();
        }
        assert_eq!(last.lock().unwrap().to_vec(), b"1234567");
    }

    /// A report on a failed worker that had written nothing came 50 ms late, three times in each restart.
    #[test]
    fn the_end_of_a_pipe_without_bytes_is_known() {
        let (near, far) = io::pipe().unwrap();
        let last = Arc::default();
        let mut pipe = WorkerPipe::new(near, Some(Arc::clone(&last))).unwrap();
        assert_eq!(pipe.read_once(&mut [0; 4]), PipeState::Empty);
        assert!(!last.lock().unwrap().is_known());
        drop(far);
        assert_eq!(pipe.read_once(&mut [0; 4]), PipeState::Ended);
        assert!(last.lock().unwrap().is_known());
    }

    #[test]
    fn any_chunking_keeps_the_same_last_bytes() {
        let all: Vec<u8> = (0..=u8::MAX).cycle().take(3 * LAST_BYTES_MAX + 7).collect();
        for size in [1, 100, LAST_BYTES_MAX, LAST_BYTES_MAX + 1, all.len()] {
            let mut last = LastBytes::default();
            for chunk in all.chunks(size) {
                last.push(chunk);
            }
            assert_eq!(last.to_vec(), all[all.len() - LAST_BYTES_MAX..], "{size}");
        }
    }

    #[test]
    fn a_short_stream_is_kept_whole() {
        let mut last = LastBytes::default();
        last.push(b"ab");
        last.push(b"");
        last.push(b"c");
        assert_eq!(last.to_vec(), b"abc");
    }
}
