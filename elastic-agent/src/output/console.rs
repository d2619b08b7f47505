//! The console: the two streams that show the output of workers.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::threads::lock;

/// The pause before another write to a non-blocking console that is full.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// The two streams on which a worker group shows the output of its workers.
///
/// A worker whose standard output goes to the console unchanged inherits the agent's own standard output,
/// not the stream given here.
pub struct Console {
    pub(crate) stdout: Box<dyn Write + Send>,
    pub(crate) stderr: Box<dyn Write + Send>,
    /// Whether workers inherit the agent's standard error, so that they see that it is a terminal.
    pub(crate) stderr_is_terminal: bool,
}

impl Console {
    /// Returns a console on this process's standard output and error.
    #[must_use]
    pub fn inherited() -> Self {
        Self {
            stdout: Box::new(io::stdout()),
            stderr: Box::new(io::stderr()),
            stderr_is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Creates a console with two writers, which are each used by one thread. A failing writer is not used
    /// again. A blocking writer delays the end of the group by up to 10 s.
    #[must_use]
    pub fn new(stdout: Box<dyn Write + Send>, stderr: Box<dyn Write + Send>) -> Self {
        Self {
            stdout,
            stderr,
            stderr_is_terminal: false,
        }
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("stderr_is_terminal", &self.stderr_is_terminal)
            .finish_non_exhaustive()
    }
}

/// The data that an output thread shares with its owner.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// When the write that is under way began; `None` while there is none.
    writing_since: Mutex<Option<Instant>>,
    /// The owner no longer waits for the thread.
    pub(super) is_abandoned: AtomicBool,
}

/// A stream of the console, which keeps the lines of several workers apart.
pub(super) struct Sink {
    name: &'static str,
    writer: Box<dyn Write + Send>,
    progress: Arc<Progress>,
    /// A write failed; later output is dropped.
    is_closed: bool,
    /// The last text written has no line end.
    is_inside_line: bool,
    /// Written by the next flush.
    buffer: Vec<u8>,
}

impl Sink {
    pub(super) fn new(
        name: &'static str,
        writer: Box<dyn Write + Send>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            name,
            writer,
            progress,
            is_closed: false,
            is_inside_line: false,
            buffer: Vec::new(),
        }
    }

    /// Adds a line, written by the next [`flush`](Self::flush).
    pub(super) fn line(&mut self, prefix: &str, line: &str) {
        self.unfinished_line(prefix, line);
        self.buffer.push(b'\n');
        self.is_inside_line = false;
    }

    /// Adds a line without a line end. A following line starts on a new line.
    pub(super) fn unfinished_line(&mut self, prefix: &str, line: &str) {
        if self.is_inside_line {
            self.buffer.push(b'\n');
        }
        self.buffer.extend_from_slice(prefix.as_bytes());
        self.buffer.extend_from_slice(line.as_bytes());
        self.is_inside_line = true;
    }

    /// Adds unchanged bytes.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if let Some(&last) = bytes.last() {
            self.is_inside_line = last != b'\n';
        }
    }

    /// Writes what was added. Blocks while the console does.
    pub(super) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if !self.is_closed
            && let Err(error) = self.write_buffer()
        {
            // This happens with `... | head`. The job continues.
            log::warn!(
                "cannot write to the console: {} no longer shows output of workers: {error}",
                self.name
            );
            self.is_closed = true;
        }
        self.buffer.clear();
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        let mut rest = self.buffer.as_slice();
        while !rest.is_empty() {
            let written = self.progress.until_accepted(|| self.writer.write(rest))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = &rest[written..];
        }
        self.progress.until_accepted(|| self.writer.flush())
    }
}

impl Progress {
    /// Returns for how long the writer has not accepted any of the pending output.
    pub(super) fn stuck_for(&self) -> Duration {
        self.writing_since()
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Repeats a write that was interrupted, or refused by a full non-blocking stream.
    pub(super) fn until_accepted<T>(&self, write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        *self.writing_since() = Some(Instant::now());
        let result = self.repeat(write);
        *self.writing_since() = None;
        result
    }

    fn writing_since(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.writing_since)
    }

    fn repeat<T>(&self, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match write() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && !self.is_abandoned.load(Ordering::Relaxed) =>
                {
                    thread::sleep(FULL_PAUSE);
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts few bytes at a time, refuses the first writes, and fails beyond a limit.
    struct Awkward {
        taken: Arc<Mutex<Vec<u8>>>,
        refusals: usize,
        bytes_max: usize,
    }

    impl Write for Awkward {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.refusals > 0 {
                self.refusals -= 1;
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut taken = self.taken.lock().unwrap();
            let room = self.bytes_max - taken.len();
            if room == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let length = bytes.len().min(room).min(3);
            taken.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn sink(refusals: usize, bytes_max: usize) -> (Sink, Arc<Mutex<Vec<u8>>>) {
        let taken = Arc::default();
        let writer = Awkward {
            taken: Arc::clone(&taken),
            refusals,
            bytes_max,
        };
        let sink = Sink::new("standard output", Box::new(writer), Arc::default());
        (sink, taken)
    }

    #[test]
    fn an_unfinished_line_ends_before_the_next() {
        let (mut sink, taken) = sink(0, 1000);
        sink.line("[0]:", "a");
        sink.raw(b"raw");
        sink.raw(b" raw");
        sink.line("[1]:", "b");
        sink.unfinished_line("[0]:", "c");
        sink.unfinished_line("[1]:", "d");
        sink.flush();
        let expected = "[0]:a\nraw raw\n[1]:b\n[0]:c\n[1]:d";
        assert_eq!(String::from_utf8_lossy(&taken.lock().unwrap()), expected);
    }

    #[test]
    fn a_write_to_a_full_console_is_repeated() {
        let (mut sink, taken) = sink(2, 1000);
        sink.line("", "everything");
        sink.flush();
        assert_eq!(*taken.lock().unwrap(), b"everything\n");
    }

    #[test]
    fn a_closed_console_is_not_an_error() {
        let (mut sink, taken) = sink(0, 4);
        sink.line("", "everything");
        sink.flush();
        sink.line("", "more");
        sink.flush();
        assert_eq!(*taken.lock().unwrap(), b"ever");
        assert!(sink.is_closed && sink.buffer.is_empty());
    }
}
