//! Moves the output of workers to their log files and to the console.
//!
//! A stream that is only kept in a file is written by its worker, and does not pass here.

mod console;
mod echo;
mod gaps;
mod lines;
mod log_writer;
mod pipe;
mod shown_log;
mod thread;
mod trail;

use std::io::{self, PipeReader};
use std::sync::Arc;

pub use self::console::Console;
use self::console::{Progress, Sink};
pub(crate) use self::echo::Sources;
pub(crate) use self::lines::LineSplitter;
pub(crate) use self::log_writer::LoggedStream;
pub(crate) use self::pipe::{CapturedPipe, LAST_BYTES_MAX, LastBytes};
pub(crate) use self::shown_log::{LineCopy, ShownLog};
use self::thread::OutputThread;

/// The threads of a group. Dropping it waits for at most 1 s of each that is stalled.
#[derive(Debug, Default)]
pub(crate) struct OutputThreads {
    /// Ends first, as it gives output to the others.
    logs: Option<OutputThread>,
    consoles: Vec<OutputThread>,
}

impl OutputThreads {
    /// Starts the threads that are needed: `worker-logs`, `worker-stdout`, `worker-stderr`.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
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
                let run = move |end: &PipeReader| echo::run(sources, sink, end);
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

    /// Writes and shows all output so far, and ends the threads. Blocks while files and console accept bytes, and for up
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
