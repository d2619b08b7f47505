//! A pipe to which a worker writes.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use rustix::io::{ioctl_fionbio, ioctl_fionread};

use super::console::Sink;
use crate::threads::lock;

/// The end that is read, and where the last bytes are kept.
#[derive(Debug)]
pub(super) struct WorkerPipe {
    pipe: Arc<PipeReader>,
    last: Option<Arc<PipeTail>>,
    /// How many bytes are left to read; `None` until the pipe is finished.
    bytes_left: Option<usize>,
}

impl WorkerPipe {
    /// Makes the pipe non-blocking.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn new(pipe: PipeReader, last: Option<Arc<PipeTail>>) -> io::Result<Self> {
        // Only this end is non-blocking: with a non-blocking write end, the worker would lose output.
        ioctl_fionbio(&pipe, true)?;
        let pipe = Arc::new(pipe);
        if let Some(last) = &last {
            lock(&last.state).pipe = Arc::downgrade(&pipe);
        }
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
        let read = match &self.last {
            Some(last) => last.read_from(&self.pipe, &mut buffer[..room]),
            None => (&*self.pipe).read(&mut buffer[..room]),
        };
        let count = match read {
            Ok(0) => return PipeState::Ended,
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
    pub(crate) fn new(pipe: PipeReader, is_shown: bool, last: Arc<PipeTail>) -> io::Result<Self> {
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
pub(crate) struct LastBytes(Vec<u8>);

impl std::fmt::Debug for LastBytes {
    /// Shows lengths instead of bytes, which can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastBytes")
            .field("bytes", &self.0.len())
            .finish()
    }
}

impl LastBytes {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LAST_BYTES_MAX)..];
        let surplus = (self.0.len() + bytes.len()).saturating_sub(LAST_BYTES_MAX);
        self.0.drain(..surplus);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.0.clone()
    }
}

/// The last bytes that one thread has read from a pipe, for other threads.
#[derive(Debug, Default)]
pub(crate) struct PipeTail {
    state: Mutex<TailState>,
    was_read: Condvar,
}

#[derive(Debug, Default)]
struct TailState {
    last: LastBytes,
    /// The number of bytes that were read so far.
    read: u64,
    /// Gone when the pipe is no longer read.
    pipe: Weak<PipeReader>,
}

impl PipeTail {
    /// Reads from the pipe, which must be non-blocking. The lock is held in the meantime, so that each byte is either in
    /// the pipe or here.
    fn read_from(&self, mut pipe: &PipeReader, buffer: &mut [u8]) -> io::Result<usize> {
        // A panic in `push` leaves the bytes valid.
        let mut state = lock(&self.state);
        let count = pipe.read(buffer)?;
        state.read += count as u64;
        state.last.push(&buffer[..count]);
        drop(state);
        self.was_read.notify_all();
        Ok(count)
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        lock(&self.state).last.to_vec()
    }

    /// Waits until everything that is in the pipe now was read, for at most this long. The end of the pipe is not waited
    /// for, because children that a worker has left behind keep the pipe open. Bytes that such a child writes later are part of the
    /// report after the stop.
    pub(crate) fn await_written(&self, patience: Duration) {
        let state = lock(&self.state);
        let end = state.written();
        let is_missing = |state: &mut TailState| state.read < end;
        let waited = self
            .was_read
            .wait_timeout_while(state, patience, is_missing);
        drop(waited);
    }
}

impl TailState {
    /// The number of bytes that were written to the pipe so far.
    fn written(&self) -> u64 {
        let pipe = self.pipe.upgrade();
        let unread = pipe.and_then(|pipe| ioctl_fionread(&*pipe).ok());
        self.read + unread.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_open_pipe_is_read_up_to_its_content_when_finished() {
        let (near, mut far) = io::pipe().unwrap();
        let last = Arc::<PipeTail>::default();
        let mut pipe = CapturedPipe::new(near, false, Arc::clone(&last)).unwrap();
        let mut sink = Sink::new("test", Box::new(io::sink()), Arc::default());
        let mut buffer = [0; 4];
        assert_eq!(pipe.read_once(&mut buffer, &mut sink), PipeState::Empty);
        far.write_all(b"1234567").unwrap();
        pipe.pipe.finish();
        while pipe.read_once(&mut buffer, &mut sink) != PipeState::Ended {
            far.write_all(b"more").unwrap();
        }
        assert_eq!(last.to_vec(), b"1234567");
    }

    /// A child that a killed worker had left behind kept the pipe open, so each restart waited for 50 ms.
    #[test]
    fn all_that_was_written_is_known_while_the_pipe_stays_open() {
        let (near, mut far) = io::pipe().unwrap();
        let last = Arc::<PipeTail>::default();
        let mut pipe = WorkerPipe::new(near, Some(Arc::clone(&last))).unwrap();
        let is_known = || {
            let state = lock(&last.state);
            state.read == state.written()
        };
        assert!(is_known());
        far.write_all(b"warning").unwrap();
        assert_eq!(pipe.read_once(&mut [0; 8]), PipeState::Read(7));
        assert!(is_known());
        far.write_all(b"traceback").unwrap();
        assert!(!is_known());
        std::thread::scope(|scope| {
            scope.spawn(|| while pipe.read_once(&mut [0; 8]) != PipeState::Empty {});
            last.await_written(Duration::from_secs(60));
        });
        assert_eq!(last.to_vec(), b"warningtraceback");
        drop(far);
        assert!(is_known());
        // A process that a different test forks has the other end too, until it executes its program.
        while pipe.read_once(&mut [0; 8]) != PipeState::Ended {
            std::thread::yield_now();
        }
        drop(pipe);
        assert!(is_known());
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
