//! The reasons why workers failed: the report for people, and the error file for the program that
//! started the launcher.
//!
//! In PyTorch:
//! `torch/distributed/elastic/multiprocessing/errors/__init__.py`.

mod decision;
mod error_file;
mod exit_record;
mod process_failure;

use c10d_socket::is_printable;

pub(crate) use self::decision::{Decision, is_abort_at_exit};
pub use self::error_file::{ErrorFileError, write_error_file};
pub use self::exit_record::ExitRecord;
use self::exit_record::TRACEBACK_START;
use self::process_failure::STDERR_LINES_MAX;
pub use self::process_failure::{Failures, ProcessFailure, RootExit};
use crate::wording::{self, epoch_seconds, signal_name};
use crate::worker::ExitKind;

/// The longest rule between the parts.
const WIDTH_MAX: usize = 60;

impl Failures {
    /// The report on all failures in PyTorch's layout, with the last lines that the root cause wrote to
    /// standard error. `name` is the program, `host` this host; `local_time` formats seconds since the
    /// epoch, as [`local_time_text`](crate::local_time_text) does. Ends without a newline.
    #[must_use]
    pub fn summary(&self, name: &str, host: &str, local_time: impl Fn(i64) -> String) -> String {
        summary(self, name, host, &local_time)
    }
}

fn summary(
    failures: &Failures,
    name: &str,
    host: &str,
    local_time: &dyn Fn(i64) -> String,
) -> String {
    let first = failures.first_index();
    let title = format!("{name} FAILED");
    let mut width = title.chars().count();
    let mut root = String::new();
    let mut others = Vec::new();
    for (index, failure) in failures.all().iter().enumerate() {
        let traceback = place_of_traceback(failures, index);
        let text = block(index, failure, &traceback, host, local_time);
        width = width.max(
            text.lines()
                .map(|line| line.chars().count())
                .max()
                .unwrap_or(0),
        );
        if index == first && !failures.is_root_elsewhere() {
            root = text;
        } else {
            let is_first = std::ptr::eq(failure, failures.first_observed());
            // The error that was seen is still wanted if another worker is blamed for it.
            others.push(if is_first {
                text + &last_lines(failure)
            } else {
                text
            });
        }
    }
    if others.is_empty() {
        others.push("  <NO_OTHER_FAILURES>".to_owned());
    }
    if let Some(exit) = failures
        .root_exit()
        .filter(|_| failures.is_root_elsewhere())
    {
        root = elsewhere(failures.all().len(), &exit.record, local_time);
        let lines = root.lines().map(|line| line.chars().count());
        width = width.max(lines.max().unwrap_or(0));
    }
    let heading = match failures.blame_reason() {
        None => "first observed failure".to_owned(),
        Some(why) => {
            root.push_str("\n  cause     : ");
            root.push_str(why);
            let cure = failures.root_exit().and_then(|root| root.cure);
            if let Some(cure) = cure {
                root.push_str("\n  cure      : ");
                root.push_str(cure);
            }
            let observed = failures.first_observed();
            match std::ptr::eq(observed, failures.first()) && !failures.is_root_elsewhere() {
                true => "first observed failure".to_owned(),
                false => format!("the first observed failure is of rank {}", observed.rank),
            }
        }
    };
    root.push_str(&match failures
        .root_exit()
        .filter(|_| failures.is_root_elsewhere())
    {
        Some(exit) => last_line(&exit.record),
        None => last_lines(failures.first()),
    });
    let width = width.min(WIDTH_MAX);
    let (rule, thin) = ("=".repeat(width), "-".repeat(width));
    let others = others.join("\n");
    format!(
        "{rule}\n{title}\n{thin}\nFailures:\n{others}\n{thin}\n\
         Root Cause ({heading}):\n{root}\n{rule}"
    )
}

/// The place at which the report shows a traceback that several workers have left.
enum Traceback {
    /// Here, with the ranks of the workers that left the same text.
    Shown { same: Vec<usize> },
    /// The traceback is shown with the worker of this rank.
    SameAs { rank: usize },
}

/// Workers often fail for the same reason. Each text is shown once: with the root cause if it has the
/// text, otherwise with the first worker that has it.
fn place_of_traceback(failures: &Failures, index: usize) -> Traceback {
    let all = failures.all();
    let failure = &all[index];
    if failure.content.is_none() {
        return Traceback::Shown { same: Vec::new() };
    }
    let alike =
        |other: &&ProcessFailure| other.content.is_some() && other.message == failure.message;
    let root = failures.first();
    let shown = Some(root)
        .filter(alike)
        .or_else(|| all.iter().find(alike))
        .unwrap_or(failure);
    if !std::ptr::eq(shown, failure) {
        return Traceback::SameAs { rank: shown.rank };
    }
    let others = all.iter().filter(alike);
    let others = others.filter(|other| !std::ptr::eq(*other, failure));
    Traceback::Shown {
        same: others.map(|other| other.rank).collect(),
    }
}

/// Formats a failure. PyTorch's report also has the trailing spaces.
fn block(
    index: usize,
    failure: &ProcessFailure,
    traceback: &Traceback,
    host: &str,
    local_time: &dyn Fn(i64) -> String,
) -> String {
    let signal = signal_field(failure.exit);
    let error_file = failure.error_file.as_ref();
    let error_file = error_file.map_or("<N/A>".into(), |path| path.to_string_lossy());
    let ProcessFailure {
        rank,
        local_rank,
        pid,
        message,
        ..
    } = failure;
    let message = match traceback {
        Traceback::Shown { same } if same.is_empty() => shown(message),
        Traceback::Shown { .. } => shown(message.trim_end()),
        Traceback::SameAs { rank } => format!("the same as of rank {rank}"),
    };
    let time = local_time(failure.timestamp);
    let code = failure.exit.code();
    let mut text = format!(
        "[{index}]:\n  time      : {time}\n  host      : {host}\n  \
         rank      : {rank} (local_rank: {local_rank})\n  \
         exitcode  : {code} (pid: {pid}) {signal}\n  \
         error_file: {error_file}\n  traceback : {message}"
    );
    if let Traceback::Shown { same } = traceback
        && !same.is_empty()
    {
        text.push_str("\n  same in   : rank ");
        text.push_str(&wording::ranks(same));
    }
    if let Some(note) = &failure.note {
        text.push_str("\n  note      : ");
        text.push_str(note);
    }
    text
}

/// The root cause, if it is the exit of a worker that is not among the failures of this node.
fn elsewhere(index: usize, record: &ExitRecord, local_time: &dyn Fn(i64) -> String) -> String {
    let ExitRecord {
        host, rank, pid, ..
    } = record;
    let time = local_time(epoch_seconds(record.ended_at()));
    let code = record.exit.code();
    format!(
        "[{index}]:\n  time      : {time}\n  host      : {host}\n  rank      : {rank}\n  \
         exitcode  : {code} (pid: {pid}) {}\n  error_file: <N/A>\n  traceback : <N/A>",
        signal_field(record.exit)
    )
}

/// The last line of such a worker; empty if it wrote none.
fn last_line(record: &ExitRecord) -> String {
    let line = record.last_line.as_ref();
    line.map_or_else(String::new, |line| {
        format!("\n  stderr    : the last line\n    {line}")
    })
}

/// ` (SIGKILL)`, or nothing.
fn signal_field(exit: ExitKind) -> String {
    let signal = match exit {
        ExitKind::Signal { number, .. } => signal_name(number),
        _ => None,
    };
    signal.map_or_else(String::new, |name| format!(" ({name})"))
}

/// The text without the control characters of a worker, which would act on the terminal of the reader.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' | '\t' => shown.push(char),
            _ if is_printable(char) => shown.push(char),
            _ => shown.extend(char.escape_default()),
        }
    }
    shown
}

/// The field with the last lines of standard error; empty if there are none. Leaves out a traceback that
/// the error file has as well.
fn last_lines(failure: &ProcessFailure) -> String {
    let mut lines = failure.all_stderr_lines();
    if failure.content.is_some()
        && let Some(last) = lines.last()
        && failure.message.trim_end().ends_with(last.trim())
        && let Some(start) = lines.iter().rposition(|line| line == TRACEBACK_START)
    {
        lines.truncate(start);
    }
    lines.drain(..lines.len().saturating_sub(STDERR_LINES_MAX));
    let mut field = String::new();
    if !lines.is_empty() {
        field.push_str("\n  stderr    : the last lines");
    }
    for line in lines {
        field.push_str("\n    ");
        field.push_str(&shown(&line));
    }
    if let Some(meaning) = &failure.meaning {
        field.push_str("\n  meaning   : ");
        field.push_str(meaning);
    }
    field
}

#[cfg(test)]
mod tests;
