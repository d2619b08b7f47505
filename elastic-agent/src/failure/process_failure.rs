//! A worker that failed, and what is known of the reason.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error_file::{self, ERROR_FILE_BYTES_MAX, ErrorFile, ErrorFileError};
use super::signal_name::signal_name;
use crate::regular_file;
use crate::worker::{ExitKind, WorkerOutcome};

/// How many of the last lines on standard error are shown.
pub(super) const STDERR_LINES_MAX: usize = 20;

/// Said when nothing tells why a worker failed.
pub(super) const HINT: &str = "no error file; for a traceback decorate the worker's main function, see \
                    https://pytorch.org/docs/stable/elastic/errors.html";

/// One worker that failed.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ProcessFailure {
    /// Its rank on this node.
    pub local_rank: usize,
    /// Its rank among all.
    pub rank: usize,
    /// Its process.
    pub pid: u32,
    /// How it ended.
    pub exit: ExitKind,
    /// The file that it left, if it left one.
    pub error_file: Option<PathBuf>,
    /// What is known of the reason: the traceback or the message of its error file, else the signal
    /// that ended it, else how to get to know more.
    pub message: String,
    /// Why its error file could not be read, if that is so.
    pub note: Option<String>,
    /// When it failed: as its error file says, else when its end was noticed. Seconds since the epoch.
    pub timestamp: i64,
    /// The last bytes that it wrote to standard error, 4 KiB at most.
    pub stderr_tail: Vec<u8>,
    pub(super) content: Option<ErrorFile>,
}

impl std::fmt::Debug for ProcessFailure {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessFailure")
            .field("local_rank", &self.local_rank)
            .field("rank", &self.rank)
            .field("pid", &self.pid)
            .field("exit", &self.exit)
            .field("error_file", &self.error_file)
            .field("message", &self.message)
            .field("note", &self.note)
            .field("timestamp", &self.timestamp)
            .field("stderr_tail_bytes", &self.stderr_tail.len())
            .finish_non_exhaustive()
    }
}

impl ProcessFailure {
    /// Tells of a worker that has ended, with the error file that it may have left. Reads up to 1 MiB
    /// of that file; one that cannot be read becomes a note, not an error.
    ///
    /// A file that names no time is taken to be as old as the worker's end. (PyTorch takes it to be
    /// of 1970, so that it would always be the first failure.)
    #[must_use]
    pub fn of(outcome: &WorkerOutcome) -> Self {
        let mut failure = Self {
            local_rank: outcome.local_rank,
            rank: outcome.rank,
            pid: outcome.pid,
            exit: outcome.exit,
            error_file: None,
            message: String::new(),
            note: None,
            timestamp: epoch_seconds(outcome.ended_at),
            stderr_tail: outcome.stderr_tail.clone(),
            content: None,
        };
        if let Some(path) = &outcome.error_file {
            failure.read_error_file(path);
        }
        if failure.message.is_empty() {
            failure.message = fallback_message(outcome.exit, outcome.pid);
        }
        failure
    }

    /// The JSON text of its error file, if it left one that could be read.
    #[must_use]
    pub fn error_json(&self) -> Option<String> {
        self.content
            .as_ref()
            .map(|content| content.json.to_string())
    }

    /// The last lines on standard error that are not empty, 20 at most.
    #[must_use]
    pub fn stderr_lines(&self) -> Vec<String> {
        let mut lines = self.all_stderr_lines();
        lines.drain(..lines.len().saturating_sub(STDERR_LINES_MAX));
        lines
    }

    /// The kept lines on standard error that are not empty.
    pub(super) fn all_stderr_lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.stderr_tail);
        text.split(['\n', '\r'])
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Whether it left an error file that could be read.
    #[must_use]
    pub const fn has_error_file(&self) -> bool {
        self.content.is_some()
    }

    /// Writes to `path` why this worker failed, with its exit code, for the program that started the
    /// launcher: the content of its error file, or without one the same form with what is known, its
    /// last lines on standard error included. (PyTorch writes nothing without one.)
    ///
    /// # Errors
    /// [`ErrorFileError`] with what the system said.
    pub fn write_error_file(&self, path: &Path) -> Result<(), ErrorFileError> {
        let code = self.exit.code();
        if let Some(content) = &self.content {
            return error_file::write(path, &content.with_error_code(code));
        }
        let message = format!("the worker with rank {} failed: {}", self.rank, self.exit);
        let mut lines = vec![self.message.clone()];
        lines.extend(self.stderr_lines());
        let json = error_file::json(&message, &lines.join("\n"), self.timestamp);
        error_file::write(path, &error_file::with_error_code(json, code))
    }

    fn read_error_file(&mut self, path: &Path) {
        let read = match regular_file::read(path, ERROR_FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => Err(error.to_string()),
            Ok(bytes) => ErrorFile::parse(&bytes),
        };
        self.error_file = Some(path.to_owned());
        match read {
            Err(reason) => self.note = Some(format!("the error file cannot be used: {reason}")),
            Ok(content) => {
                self.message.clone_from(&content.message);
                self.timestamp = content.timestamp.unwrap_or(self.timestamp);
                self.content = Some(content);
            }
        }
    }
}

/// The workers that failed, one at least, in the order in which that was noticed.
#[derive(Debug, Clone, PartialEq)]
pub struct Failures(Vec<ProcessFailure>);

impl Failures {
    /// Takes over the failures; `None` when there are none.
    #[must_use]
    pub fn new(failures: Vec<ProcessFailure>) -> Option<Self> {
        (!failures.is_empty()).then_some(Self(failures))
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[ProcessFailure] {
        &self.0
    }

    /// The one that was first by its timestamp, which is taken for the cause of the others; of those
    /// of the same second the one that was noticed first.
    #[must_use]
    pub fn first(&self) -> &ProcessFailure {
        &self.0[self.first_index()]
    }

    pub(super) fn first_index(&self) -> usize {
        let times = self.0.iter().enumerate();
        let first = times.min_by_key(|(index, failure)| (failure.timestamp, *index));
        // There is one at least.
        first.map_or(0, |(index, _)| index)
    }
}

fn fallback_message(exit: ExitKind, pid: u32) -> String {
    match exit {
        ExitKind::Signal { number, .. } => {
            let name = signal_name(number).unwrap_or("<N/A>");
            format!("Signal {number} ({name}) received by PID {pid}")
        }
        ExitKind::Code(_) => HINT.to_owned(),
        ExitKind::Unknown => "its exit status is lost: something else has waited for it".to_owned(),
    }
}

fn epoch_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
