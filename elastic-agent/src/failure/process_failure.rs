//! A worker that failed, and the known reason.

use std::io;
use std::path::{Path, PathBuf};

use super::error_file::{self, ERROR_FILE_BYTES_MAX, ErrorFile, ErrorFileError};
use super::exit_record::ExitRecord;
use crate::files;
use crate::wording::{OUT_OF_MEMORY, epoch_seconds, signal_name};
use crate::worker::{ExitKind, WorkerOutcome};

/// How many of the last lines on standard error a report shows.
pub(super) const STDERR_LINES_MAX: usize = 20;

/// The message for a worker that left no reason.
pub(super) const HINT: &str = "no error file; for a traceback decorate the worker's main function, see \
                    https://pytorch.org/docs/stable/elastic/errors.html";

/// A failed worker, with everything that is known about its failure.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ProcessFailure {
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's global rank.
    pub rank: usize,
    /// The process id, which may be in use again.
    pub pid: u32,
    /// The way in which the process exited.
    pub exit: ExitKind,
    /// The error file; `None` if the worker wrote none.
    pub error_file: Option<PathBuf>,
    /// The reason of the failure: the traceback or message of the error file; without these, the signal that killed the
    /// worker, or a hint how to get a traceback.
    pub message: String,
    /// The reason why the error file could not be read; `None` if it was read or is missing.
    pub note: Option<String>,
    /// Whether the worker was still running when the agent stopped the group.
    pub was_stopped: bool,
    /// When the worker failed, in seconds since 1970: as written in the error file, or otherwise when the agent
    /// noticed.
    pub timestamp: i64,
    /// The last bytes of standard error, 4 KiB at most.
    pub stderr_tail: Vec<u8>,
    /// The meaning of standard error, if the caller has [explained](Failures::explain_stderr) it.
    pub meaning: Option<String>,
    pub(super) content: Option<ErrorFile>,
}

impl std::fmt::Debug for ProcessFailure {
    /// Shows lengths instead of bytes, which can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessFailure")
            .field("local_rank", &self.local_rank)
            .field("rank", &self.rank)
            .field("pid", &self.pid)
            .field("exit", &self.exit)
            .field("error_file", &self.error_file)
            .field("message", &self.message)
            .field("note", &self.note)
            .field("was_stopped", &self.was_stopped)
            .field("timestamp", &self.timestamp)
            .field("stderr_tail_bytes", &self.stderr_tail.len())
            .finish_non_exhaustive()
    }
}

impl ProcessFailure {
    /// Describes a failed worker. Reads up to 1 MiB of its error file; an unreadable file becomes a note.
    ///
    /// An error file without a timestamp gets the time of the worker's exit. (PyTorch takes the year 1970,
    /// which makes that worker the root cause.)
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
            was_stopped: outcome.was_stopped,
            timestamp: epoch_seconds(outcome.ended_at),
            stderr_tail: outcome.stderr_tail.clone(),
            meaning: None,
            content: None,
        };
        if let Some(path) = &outcome.error_file {
            failure.read_error_file(path);
        }
        if failure.message.is_empty() {
            failure.message = fallback_message(outcome.exit, outcome.pid);
            // The agent itself kills workers that it stops.
            if !outcome.was_stopped && is_kill(outcome.exit) {
                failure.message.push_str(OUT_OF_MEMORY);
            }
        }
        failure
    }

    /// Returns the JSON text of the error file; `None` without a readable error file.
    #[must_use]
    pub fn error_json(&self) -> Option<String> {
        self.content
            .as_ref()
            .map(|content| content.json.to_string())
    }

    /// The exception as one text, such as `ValueError: x`, if the error file has one.
    pub(crate) fn error_message(&self) -> Option<&str> {
        let message = self.content.as_ref()?.json.get("message")?;
        message.get("message").unwrap_or(message).as_str()
    }

    /// The last non-empty lines of standard error, 20 at most.
    #[must_use]
    pub fn stderr_lines(&self) -> Vec<String> {
        let mut lines = self.all_stderr_lines();
        lines.drain(..lines.len().saturating_sub(STDERR_LINES_MAX));
        lines
    }

    /// The non-empty lines of the kept end of standard error.
    pub(super) fn all_stderr_lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.stderr_tail);
        text.split(['\n', '\r'])
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Whether the worker left a readable error file.
    #[must_use]
    pub const fn has_error_file(&self) -> bool {
        self.content.is_some()
    }

    /// Writes to `path` why this worker failed, with its exit code, for the program that started the
    /// launcher: the content of the worker's error file, or without one the same form with the message and
    /// the last lines of standard error. (PyTorch writes nothing without one.)
    ///
    /// # Errors
    /// [`ErrorFileError`] if the file cannot be written.
    pub fn write_error_file(&self, path: &Path) -> Result<(), ErrorFileError> {
        let code = self.exit.code();
        if let Some(content) = &self.content {
            return error_file::write(path, &content.with_error_code(code));
        }
        let message = format!("worker with rank {} failed: {}", self.rank, self.exit);
        let mut lines = vec![self.message.clone()];
        lines.extend(self.stderr_lines());
        let json = error_file::json(&message, &lines.join("\n"), self.timestamp);
        error_file::write(path, &error_file::with_error_code(json, code))
    }

    fn read_error_file(&mut self, path: &Path) {
        let read = match files::read(path, ERROR_FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => Err(error.to_string()),
            Ok(bytes) => ErrorFile::parse(&bytes),
        };
        self.error_file = Some(path.to_owned());
        match read {
            Err(reason) => self.note = Some(format!("cannot use the error file: {reason}")),
            Ok(content) => {
                self.message.clone_from(&content.message);
                self.timestamp = content.timestamp.unwrap_or(self.timestamp);
                self.content = Some(content);
            }
        }
    }
}

/// The workers that failed, at least one, in the order in which the agent noticed.
#[derive(Debug, Clone, PartialEq)]
pub struct Failures {
    all: Vec<ProcessFailure>,
    /// The root cause, if it is known to be another than the failure that was observed first.
    blamed: Option<Blamed>,
    /// The exits of the round by node, this node first.
    exits: Vec<Vec<ExitRecord>>,
    /// The number of ranks in the round.
    world_size: Option<usize>,
}

/// The blamed worker or exit, and the reason.
#[derive(Debug, Clone, PartialEq)]
enum Blamed {
    /// A worker of this node that its launcher stopped while it was running: its position, and a clause about it.
    Stopped(usize, String),
    #[cfg_attr(
        not(feature = "launcher"),
        allow(dead_code, reason = "only a launcher needs it")
    )]
    Exit(Box<RootExit>),
}

/// The exit of a worker that is the root cause of a failure. The worker can be on another node, and its exit code can be 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RootExit {
    /// The exit. Its time is by the clock of this host.
    pub record: ExitRecord,
    /// The cause as a sentence without a full stop, such as "rank 1 exited with code 0, 0.1 s before rank 0 lost its
    /// connection to it".
    pub text: String,
    /// Whether the exits prove that this exit is the cause.
    pub is_certain: bool,
    /// An action that prevents the failure, as an imperative, if one is known.
    pub cure: Option<&'static str>,
}

impl Failures {
    /// Creates a non-empty list of failures; `None` without failures.
    #[must_use]
    pub fn new(failures: Vec<ProcessFailure>) -> Option<Self> {
        (!failures.is_empty()).then_some(Self {
            all: failures,
            blamed: None,
            exits: Vec::new(),
            world_size: None,
        })
    }

    /// Adds the exits of the round by node, this node first, and its number of ranks.
    #[must_use]
    pub(crate) fn with_exits(mut self, exits: Vec<Vec<ExitRecord>>, world_size: usize) -> Self {
        self.exits = exits;
        self.world_size = Some(world_size);
        self
    }

    /// The number of ranks in the round, if the exits are known.
    #[cfg(feature = "launcher")]
    pub(crate) const fn world_size(&self) -> Option<usize> {
        self.world_size
    }

    /// Returns the known exits of the round's workers by node, this node first, including exits with code 0.
    #[must_use]
    pub fn exits(&self) -> &[Vec<ExitRecord>] {
        &self.exits
    }

    /// Returns all failures, in the order in which the agent noticed them.
    #[must_use]
    pub fn all(&self) -> &[ProcessFailure] {
        &self.all
    }

    /// Returns the root cause among the failures of this node: the [blamed](Self::blame) failure, otherwise the [first
    /// observed](Self::first_observed). See [`root_exit`](Self::root_exit) for a cause that is none of them.
    #[must_use]
    pub fn first(&self) -> &ProcessFailure {
        &self.all[self.first_index()]
    }

    /// Returns the failure with the lowest timestamp; among failures of the same second, the failure that the agent
    /// noticed first.
    #[must_use]
    pub fn first_observed(&self) -> &ProcessFailure {
        &self.all[self.first_observed_index()]
    }

    /// Makes the worker with this global rank the root cause, although another failed first; `why` is a clause about
    /// it, such as "alive, but never reached init_process_group". Returns whether the agent stopped that worker while
    /// it was running. Otherwise nothing changes, because the worker's failure already has a reason.
    pub fn blame(&mut self, rank: usize, why: impl Into<String>) -> bool {
        let position = self
            .all
            .iter()
            .position(|it| it.rank == rank && it.was_stopped);
        if let Some(index) = position {
            self.blamed = Some(Blamed::Stopped(index, why.into()));
        }
        position.is_some()
    }

    /// Returns the reason why the root cause is not the failure that was observed first; `None` if it is.
    #[must_use]
    pub fn blame_reason(&self) -> Option<&str> {
        match self.blamed.as_ref()? {
            Blamed::Stopped(_, why) => Some(why),
            Blamed::Exit(root) => Some(&root.text),
        }
    }

    /// Makes an exit the root cause: of a worker of this node or another node, also with exit code 0.
    #[cfg_attr(
        not(feature = "launcher"),
        allow(dead_code, reason = "only a launcher needs it")
    )]
    pub(crate) fn blame_exit(&mut self, root: RootExit) {
        self.blamed = Some(Blamed::Exit(Box::new(root)));
    }

    /// The exit that is the root cause; `None` if it is the failure that was observed first, or a worker that was running.
    #[must_use]
    pub fn root_exit(&self) -> Option<&RootExit> {
        match self.blamed.as_ref()? {
            Blamed::Exit(root) => Some(root),
            Blamed::Stopped(..) => None,
        }
    }

    /// Whether the root cause is none of these failures.
    #[must_use]
    pub fn is_root_elsewhere(&self) -> bool {
        self.root_exit()
            .is_some_and(|root| self.position(&root.record).is_none())
    }

    /// The place of an exit among the failures.
    fn position(&self, record: &ExitRecord) -> Option<usize> {
        let is_here = |it: &ProcessFailure| it.rank == record.rank && it.pid == record.pid;
        self.all.iter().position(is_here)
    }

    /// Writes to `path` why the root cause failed, as
    /// [`ProcessFailure::write_error_file`]; for a [blamed](Self::blame) worker the reason, and then what
    /// the first observed failure left, with its exit code.
    ///
    /// # Errors
    /// [`ErrorFileError`] if the file cannot be written.
    pub fn write_error_file(&self, path: &Path) -> Result<(), ErrorFileError> {
        let Some(why) = self.blame_reason() else {
            return self.first().write_error_file(path);
        };
        let observed = self.first_observed();
        let culprit = self
            .root_exit()
            .map_or(self.first().rank, |root| root.record.rank);
        let message = format!("worker with rank {culprit} is the root cause: {why}");
        let mut lines = vec![
            message.clone(),
            format!(
                "worker with rank {} failed first: {}",
                observed.rank, observed.exit
            ),
            observed.message.clone(),
        ];
        lines.extend(observed.stderr_lines());
        let json = error_file::json(&message, &lines.join("\n"), observed.timestamp);
        error_file::write(
            path,
            &error_file::with_error_code(json, observed.exit.code()),
        )
    }

    /// Adds to each failure what its standard error means: what `explain` makes of its last lines.
    pub fn explain_stderr(&mut self, explain: impl Fn(&str) -> Option<String>) {
        for failure in &mut self.all {
            if !failure.stderr_tail.is_empty() {
                failure.meaning = explain(&String::from_utf8_lossy(&failure.stderr_tail));
            }
        }
    }

    pub(super) fn first_index(&self) -> usize {
        let blamed = match &self.blamed {
            Some(Blamed::Stopped(index, _)) => Some(*index),
            Some(Blamed::Exit(root)) => self.position(&root.record),
            None => None,
        };
        blamed.unwrap_or_else(|| self.first_observed_index())
    }

    fn first_observed_index(&self) -> usize {
        let times = self.all.iter().enumerate();
        let first = times.min_by_key(|(index, failure)| (failure.timestamp, *index));
        // There is at least one.
        first.map_or(0, |(index, _)| index)
    }
}

fn is_kill(exit: ExitKind) -> bool {
    let kill = rustix::process::Signal::KILL.as_raw();
    matches!(exit, ExitKind::Signal { number, .. } if number == kill)
}

fn fallback_message(exit: ExitKind, pid: u32) -> String {
    match exit {
        ExitKind::Signal { number, .. } => {
            let name = signal_name(number).unwrap_or("<N/A>");
            format!("Signal {number} ({name}) received by PID {pid}")
        }
        ExitKind::Code(_) => HINT.to_owned(),
        ExitKind::Unknown => {
            "exit status lost: other code of the launcher's process reaped the worker".to_owned()
        }
    }
}
