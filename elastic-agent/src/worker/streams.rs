//! Opens the output streams of workers that are about to start: log files and pipes.
//!
//! [`output`](crate::output) reads them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::files;
use crate::logs::{Destination, FilteredLog};
use crate::output::{
    CapturedPipe, LAST_BYTES_MAX, LineCopy, LoggedStream, PipeTail, ShownLog, Sources,
};

use super::plan::{GroupPlan, StartError, WorkerInput, WorkerPlan};

/// The place of the last bytes of a worker's standard error.
#[derive(Debug)]
pub(super) enum StderrEnd {
    /// Nowhere: it is a terminal.
    Terminal,
    /// They are in the log file.
    File(PathBuf),
    /// They are in memory, read from a pipe.
    Kept(Arc<PipeTail>),
}

impl StderrEnd {
    /// Waits until the bytes that a process wrote to the pipe before its exit are read, for at most this long.
    pub(super) fn await_bytes(&self, patience: Duration) {
        if let Self::Kept(last) = self {
            last.await_written(patience);
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Terminal => Vec::new(),
            Self::File(path) => {
                files::read_end(path, LAST_BYTES_MAX as u64).unwrap_or_else(|error| {
                    log::warn!("cannot read {}: {error}", path.display());
                    Vec::new()
                })
            }
            Self::Kept(last) => last.to_vec(),
        }
    }
}

/// The standard output and error of a worker; `None` for the agent's own.
#[derive(Debug, Default)]
pub(super) struct WorkerStreams {
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    has_no_input: bool,
}

impl WorkerStreams {
    /// Sets the streams of a worker that is a program.
    pub(super) fn apply_to(self, command: &mut Command) {
        if self.has_no_input {
            command.stdin(Stdio::null());
        }
        if let Some(stdout) = self.stdout {
            command.stdout(Stdio::from(stdout));
        }
        if let Some(stderr) = self.stderr {
            command.stderr(Stdio::from(stderr));
        }
    }

    /// The streams of a worker that inherits nothing: input, output and error. All of them share the agent's input.
    pub(super) fn all<'s>(&'s self, own: &'s OwnStreams) -> [BorrowedFd<'s>; 3] {
        let [stdin, stdout, stderr] = &own.0;
        [
            stdin.as_fd(),
            self.stdout.as_ref().unwrap_or(stdout).as_fd(),
            self.stderr.as_ref().unwrap_or(stderr).as_fd(),
        ]
    }
}

/// Copies of the agent's own standard streams.
#[derive(Debug)]
pub(super) struct OwnStreams([OwnedFd; 3]);

impl OwnStreams {
    /// A stream that the agent has closed is /dev/null for workers.
    ///
    /// # Errors
    /// An error of the operating system if it has no descriptor left.
    pub(super) fn copied() -> io::Result<Self> {
        let copy = |stream: BorrowedFd<'_>| {
            stream
                .try_clone_to_owned()
                .or_else(|_| null().map(OwnedFd::from))
        };
        Ok(Self([
            copy(io::stdin().as_fd())?,
            copy(io::stdout().as_fd())?,
            copy(io::stderr().as_fd())?,
        ]))
    }
}

/// The streams that the threads write and show.
#[derive(Debug, Default)]
pub(super) struct GroupSources {
    pub(super) logs: Vec<LoggedStream>,
    pub(super) stdout: Sources,
    pub(super) stderr: Sources,
}

impl GroupSources {
    /// Opens the filtered logs, which all workers share.
    pub(super) fn open(plan: &GroupPlan) -> Result<Self, StartError> {
        let mut sources = Self::default();
        sources.stderr.first_read = Arc::clone(&sources.stdout.first_read);
        sources.stdout.copy = plan.filtered_stdout.as_ref().map(open_copy).transpose()?;
        sources.stderr.copy = plan.filtered_stderr.as_ref().map(open_copy).transpose()?;
        Ok(sources)
    }

    /// Opens the output streams of a worker.
    pub(super) fn connect(
        &mut self,
        worker: &WorkerPlan,
        stderr_is_terminal: bool,
    ) -> Result<(WorkerStreams, StderrEnd), StartError> {
        let prefix = &worker.line_prefix;
        let mut streams = WorkerStreams {
            has_no_input: worker.input == WorkerInput::Empty,
            ..WorkerStreams::default()
        };
        match &worker.logs.stdout {
            Destination::Console => {}
            Destination::Discard => {
                let file = null().map_err(|source| StartError::System { source })?;
                streams.stdout = Some(file.into());
            }
            Destination::File { path, is_shown } => {
                let shown = is_shown.then_some(&mut self.stdout);
                streams.stdout = Some(open_log(path, prefix, shown, &mut self.logs, None)?);
            }
        }
        let end = match &worker.logs.stderr {
            Destination::Console if stderr_is_terminal => StderrEnd::Terminal,
            Destination::File {
                path,
                is_shown: true,
            } => {
                let (last, shown) = (Arc::default(), Some(&mut self.stderr));
                let kept = Some(Arc::clone(&last));
                streams.stderr = Some(open_log(path, prefix, shown, &mut self.logs, kept)?);
                StderrEnd::Kept(last)
            }
            Destination::File {
                path,
                is_shown: false,
            } => {
                streams.stderr = Some(create(path)?.into());
                StderrEnd::File(path.clone())
            }
            // A pipe even for output that is not shown: its last lines explain a failure.
            Destination::Console | Destination::Discard => {
                let is_shown = worker.logs.stderr == Destination::Console;
                let last = Arc::default();
                let connected = io::pipe().and_then(|(near, far)| {
                    let captured = CapturedPipe::new(near, is_shown, Arc::clone(&last))?;
                    self.stderr.pipes.push(captured);
                    streams.stderr = Some(far.into());
                    Ok(())
                });
                connected.map_err(|source| StartError::System { source })?;
                StderrEnd::Kept(last)
            }
        };
        Ok((streams, end))
    }
}

/// Creates a worker's log file; returns what its worker writes to. That appends, so that a file truncated by a log
/// rotation stays compact. If the output is shown, it is a pipe.
fn open_log(
    path: &Path,
    prefix: &str,
    shown: Option<&mut Sources>,
    logs: &mut Vec<LoggedStream>,
    last: Option<Arc<PipeTail>>,
) -> Result<OwnedFd, StartError> {
    let file = create(path)?;
    let Some(sources) = shown else {
        return Ok(file.into());
    };
    let (near, far) = io::pipe().map_err(|source| StartError::System { source })?;
    let stream = LoggedStream::new(near, path, file, last)
        .map_err(|source| StartError::System { source })?;
    let shown = ShownLog::open(path, prefix.to_owned(), &stream);
    sources.files.push(shown.map_err(log_file_error(path))?);
    logs.push(stream);
    Ok(far.into())
}

fn open_copy(log: &FilteredLog) -> Result<LineCopy, StartError> {
    Ok(LineCopy {
        path: log.path.clone(),
        file: create(&log.path)?,
        filters: log.filters.clone(),
        is_failing: false,
    })
}

fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

fn create(path: &Path) -> Result<File, StartError> {
    let options = OpenOptions::new().create(true).append(true).clone();
    options.open(path).map_err(log_file_error(path))
}

fn log_file_error(path: &Path) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::LogFile {
        path: path.to_owned(),
        source,
    }
}
