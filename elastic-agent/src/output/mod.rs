//! Moves the output of workers to their log files and to the console.
//!
//! A stream that is only kept in a file is written by its worker, and does not pass here. One thread owns each stream of the
//! console: a slow console never delays workers whose output is kept in files, but workers that write to a pipe.

mod console;
mod gaps;
mod lines;
mod log_writer;
mod pipe;
mod shown_log;
mod thread;
mod trail;

use std::io::{self, PipeReader};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use self::console::Console;
use self::console::{Progress, Sink};
pub(crate) use self::lines::LineSplitter;
pub(crate) use self::log_writer::LoggedStream;
use self::pipe::PipeState;
pub(crate) use self::pipe::{CapturedPipe, LAST_BYTES_MAX, LastBytes, PipeTail};
pub(crate) use self::shown_log::{LineCopy, ShownLog};
use self::thread::{OutputThread, READ_BYTES_MAX, wait};

/// The threads of a group. Dropping it waits for at most 1 s of each that is stalled.
#[derive(Debug, Default)]
pub(crate) struct OutputThreads {
    /// The thread of the logs. It stops first, because it passes output to the console threads.
    logs: Option<OutputThread>,
    consoles: Vec<OutputThread>,
}

impl OutputThreads {
    /// Starts the threads that are needed: `worker-logs`, `worker-stdout`, `worker-stderr`.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread or descriptor left.
    pub(crate) fn start(
        logs: Vec<LoggedStream>,
        stdout: Sources,
        stderr: Sources,
        console: Console,
    ) -> io::Result<Self> {
        let mut threads = Self::default();
        let shown = [
            ("worker-stdout", console.stdout, stdout),
            ("worker-stderr", console.stderr, stderr),
        ];
        for (name, writer, sources) in shown {
            if !sources.is_empty() {
                let progress = Arc::new(Progress::default());
                let sink = Sink::new(name, writer, Arc::clone(&progress));
                let run = move |end: &PipeReader| run(sources, sink, end);
                let thread = OutputThread::start(name, "the console", progress, run)?;
                threads.consoles.push(thread);
            }
        }
        if !logs.is_empty() {
            let (name, progress) = ("worker-logs", Arc::new(Progress::default()));
            let of_thread = Arc::clone(&progress);
            let run = move |end: &PipeReader| log_writer::run(logs, &of_thread, end);
            let thread = OutputThread::start(name, "the file system of the logs", progress, run)?;
            threads.logs = Some(thread);
        }
        Ok(threads)
    }

    /// Writes and shows all output so far, and stops the threads. Blocks while files and console accept bytes, and for up
    /// to 10 s while one of them does not, which count from before this call; for 1 s once `is_killed` returns true.
    pub(crate) fn finish(&mut self, is_killed: impl Fn() -> bool) {
        if let Some(logs) = self.logs.take() {
            logs.finish(&is_killed);
        }
        self.consoles.iter_mut().for_each(OutputThread::close);
        for console in self.consoles.drain(..) {
            console.finish(&is_killed);
        }
    }
}

/// How often files are read: often enough to look live, and 20 reads a second cost nothing.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);

/// The interval for output in memory, which has little room: a busy worker fills it in some milliseconds.
const MEMORY_INTERVAL: Duration = Duration::from_millis(2);

/// The sources of the output that one stream shows.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// When the first output was read.
    pub(crate) first_read: Arc<OnceLock<Instant>>,
    pub(crate) files: Vec<ShownLog>,
    pub(crate) pipes: Vec<CapturedPipe>,
    pub(crate) copy: Option<LineCopy>,
}

impl Sources {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.pipes.is_empty()
    }
}

/// Shows `sources` until `finish_seen` is closed, and then what is left.
fn run(mut sources: Sources, mut sink: Sink, finish_seen: &PipeReader) {
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut is_finishing = false;
    loop {
        let mut may_have_more = false;
        for file in &mut sources.files {
            may_have_more |= file.show_once(&mut buffer, &mut sink, &mut sources.copy);
        }
        sources
            .pipes
            .retain_mut(|pipe| match pipe.read_once(&mut buffer, &mut sink) {
                PipeState::Read(_) => {
                    may_have_more = true;
                    true
                }
                PipeState::Empty => true,
                PipeState::Ended => false,
            });
        if may_have_more {
            sources.first_read.get_or_init(Instant::now);
        }
        if is_finishing {
            if may_have_more {
                continue;
            }
            break;
        }
        let timeout = if may_have_more {
            Some(Duration::ZERO)
        } else if sources.files.iter().any(|file| file.is_in_memory) {
            Some(MEMORY_INTERVAL)
        } else {
            (!sources.files.is_empty()).then_some(FOLLOW_INTERVAL)
        };
        // Checked each time, as a worker's output may never pause.
        let pipes = sources.pipes.iter().map(|it| it.pipe.descriptor());
        if wait(pipes, finish_seen, timeout) {
            is_finishing = true;
            sources.pipes.iter_mut().for_each(|it| it.pipe.finish());
        }
    }
    for file in &mut sources.files {
        file.end(&mut sink, &mut sources.copy);
    }
}
