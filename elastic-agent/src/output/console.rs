//! Where the output of workers is shown.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How long to wait for a console that takes nothing at the moment and does not block.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// The two streams on which a worker group shows what its workers write.
///
/// A worker whose standard output is neither redirected nor shown with a prefix has the agent's own,
/// whatever the console is.
pub struct Console {
    pub(crate) stdout: Box<dyn Write + Send>,
    pub(crate) stderr: Box<dyn Write + Send>,
    /// Whether workers get the agent's standard error itself, so that they see it is a terminal.
    pub(crate) stderr_is_terminal: bool,
}

impl Console {
    /// This process's standard output and error.
    #[must_use]
    pub fn inherited() -> Self {
        Self {
            stdout: Box::new(io::stdout()),
            stderr: Box::new(io::stderr()),
            stderr_is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Two writers, which are used by one thread each. One that fails is not used again; one that
    /// blocks delays the end of the group, by ten seconds at most.
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

/// What the owner of an echo thread sees of it and tells it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Grows while the console takes bytes.
    pub(super) bytes_written: AtomicU64,
    /// Nobody waits for the thread any more.
    pub(super) is_abandoned: AtomicBool,
}

/// One stream of the console: lines of several workers, never mixed within a line.
pub(super) struct Sink {
    name: &'static str,
    writer: Box<dyn Write + Send>,
    progress: Arc<Progress>,
    /// The console is closed; what comes is dropped.
    is_closed: bool,
    /// Text has been written that does not end with a line.
    is_inside_line: bool,
    /// What is written with the next flush.
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

    /// Adds a line, to be written with the next [`flush`](Self::flush).
    pub(super) fn line(&mut self, prefix: &str, line: &str) {
        self.unfinished_line(prefix, line);
        self.buffer.push(b'\n');
        self.is_inside_line = false;
    }

    /// Adds a line that its worker has not ended. If others follow, it ends before them.
    pub(super) fn unfinished_line(&mut self, prefix: &str, line: &str) {
        if self.is_inside_line {
            self.buffer.push(b'\n');
        }
        self.buffer.extend_from_slice(prefix.as_bytes());
        self.buffer.extend_from_slice(line.as_bytes());
        self.is_inside_line = true;
    }

    /// Adds bytes as they are.
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
            // Whoever looked has left (`... | head`). The job goes on.
            log::warn!(
                "the console is closed, output of workers is not shown any more ({}): {error}",
                self.name
            );
            self.is_closed = true;
        }
        self.buffer.clear();
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        let mut rest = self.buffer.as_slice();
        while !rest.is_empty() {
            let written = self.progress.until_it_takes(|| self.writer.write(rest))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            let bytes = written.try_into().unwrap_or(u64::MAX);
            self.progress
                .bytes_written
                .fetch_add(bytes, Ordering::Relaxed);
            rest = &rest[written..];
        }
        self.progress.until_it_takes(|| self.writer.flush())
    }
}

impl Progress {
    /// Repeats a write that was interrupted or, on a stream that somebody made non-blocking, refused.
    fn until_it_takes<T>(&self, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
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
    use std::sync::Mutex;

    use super::*;

    /// Takes few bytes at a time, and refuses or fails as told.
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
    fn a_line_that_nobody_ended_ends_before_the_next() {
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
    fn a_console_that_is_full_is_waited_for() {
        let (mut sink, taken) = sink(2, 1000);
        sink.line("", "everything");
        sink.flush();
        assert_eq!(*taken.lock().unwrap(), b"everything\n");
    }

    #[test]
    fn a_console_that_is_closed_is_not_an_error() {
        let (mut sink, taken) = sink(0, 4);
        sink.line("", "everything");
        sink.flush();
        sink.line("", "more");
        sink.flush();
        assert_eq!(*taken.lock().unwrap(), b"ever");
        assert!(sink.is_closed && sink.buffer.is_empty());
    }
}
