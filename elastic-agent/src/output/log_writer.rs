//! The thread that writes the log files of streams that are also shown on the console.
//!
//! Workers write to pipes, so that a file system without space fails no worker. The thread does not wait for the
//! console: the file holds the console's backlog, and memory holds it while the file cannot be written.

use std::fs::File;
use std::io::{self, PipeReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGXFSZ;

use super::console::Progress;
use super::gaps::{Gaps, Next};
use super::pipe::{PipeState, PipeTail, WorkerPipe};
use super::thread::{READ_BYTES_MAX, wait};
use super::trail::Trail;
use crate::threads::lock;

/// A stream of a worker: its pipe and its log file.
#[derive(Debug)]
pub(crate) struct LoggedStream {
    /// `None` once it has ended.
    pipe: Option<WorkerPipe>,
    path: PathBuf,
    file: File,
    gaps: Gaps,
    /// The state that the thread which shows the stream reads.
    trail: Arc<Mutex<Trail>>,
}

impl LoggedStream {
    /// Takes the end of the pipe that is read, and the file, which must append.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn new(
        pipe: PipeReader,
        path: &Path,
        file: File,
        last: Option<Arc<PipeTail>>,
    ) -> io::Result<Self> {
        Ok(Self {
            pipe: Some(WorkerPipe::new(pipe, last)?),
            path: path.to_owned(),
            file,
            gaps: Gaps::default(),
            trail: Arc::default(),
        })
    }

    pub(super) fn trail(&self) -> Arc<Mutex<Trail>> {
        Arc::clone(&self.trail)
    }

    /// Reads once, and writes what it has read. Returns whether there may be more, and why it could not be written.
    fn move_once(&mut self, buffer: &mut [u8], progress: &Progress) -> (bool, Option<io::Error>) {
        let Some(pipe) = &mut self.pipe else {
            return (false, None);
        };
        match pipe.read_once(buffer) {
            PipeState::Read(count) => (true, self.write(&buffer[..count], progress)),
            PipeState::Empty => (false, None),
            PipeState::Ended => {
                self.pipe = None;
                (false, None)
            }
        }
    }

    /// Gives the output, if any, to the file or to the console alone.
    fn write(&mut self, mut output: &[u8], progress: &Progress) -> Option<io::Error> {
        let mut failure = None;
        while let Some(next) = self.gaps.next(Instant::now(), output) {
            let bytes = match &next {
                Next::Notice(bytes) => bytes,
                Next::Output => output,
            };
            let written = progress.until_accepted(|| match self.file.write(bytes)? {
                0 => Err(io::ErrorKind::WriteZero.into()),
                count => Ok(count),
            });
            match (written, next) {
                (Ok(count), Next::Notice(_)) => self.gaps.wrote_notice(count),
                (Ok(count), Next::Output) => {
                    self.gaps.wrote(&output[..count]);
                    self.trail_file(count);
                    output = &output[count..];
                }
                (Err(error), _) => {
                    self.gaps.failed(Instant::now(), &error);
                    failure = Some(error);
                }
            }
        }
        if !output.is_empty() {
            self.gaps.missed(output.len());
            lock(&self.trail).push_memory(output);
        }
        failure
    }

    /// The console finds the last `count` bytes of the file, which may have been truncated before them.
    fn trail_file(&mut self, count: usize) {
        let count = count as u64;
        // Appending moves the position to the end.
        let end = self.file.stream_position().unwrap_or(count);
        lock(&self.trail).push_file(end.saturating_sub(count), end);
    }
}

/// Moves the output of all streams until `finish_seen` is closed, and then what their pipes hold.
pub(super) fn run(mut streams: Vec<LoggedStream>, progress: &Progress, finish_seen: &PipeReader) {
    survive_file_limits();
    let mut buffer = vec![0; READ_BYTES_MAX];
    let (mut is_finishing, mut is_warned) = (false, false);
    loop {
        let mut may_have_more = false;
        let now = Instant::now();
        for stream in &mut streams {
            let (is_more, mut failure) = stream.move_once(&mut buffer, progress);
            may_have_more |= is_more;
            if stream.gaps.retry_at().is_some_and(|at| at <= now) {
                failure = stream.write(&[], progress).or(failure);
            }
            if let Some(error) = failure
                && !std::mem::replace(&mut is_warned, true)
            {
                log::warn!(
                    "cannot write {}: {error}; the console still gets the output",
                    stream.path.display()
                );
            }
        }
        if is_finishing {
            if may_have_more {
                continue;
            }
            break;
        }
        let retries = streams.iter().filter_map(|it| it.gaps.retry_at());
        let timeout = if may_have_more {
            Some(Duration::ZERO)
        } else {
            let retry = retries.min();
            retry.map(|at| at.saturating_duration_since(Instant::now()))
        };
        let pipes = streams.iter().filter_map(|it| it.pipe.as_ref());
        if wait(pipes.map(WorkerPipe::descriptor), finish_seen, timeout) {
            is_finishing = true;
            let pipes = streams.iter_mut().filter_map(|it| it.pipe.as_mut());
            pipes.for_each(WorkerPipe::finish);
        }
    }
    for stream in &mut streams {
        stream.gaps.hurry();
        let _ = stream.write(&[], progress);
    }
}

/// Beyond the limit of a file's size (`ulimit -f`) a write is an error, and does not end the process.
fn survive_file_limits() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Workers get the default again when they are executed.
        if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
            log::warn!("cannot handle SIGXFSZ: {error}");
        }
    });
}
