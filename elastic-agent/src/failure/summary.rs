//! The report at the end of a job that failed, in PyTorch's layout: people and scripts know it.

use super::process_failure::{Failures, ProcessFailure, STDERR_LINES_MAX};
use super::signal_name::signal_name;
use crate::worker::{ExitKind, roll};

/// The longest rule between the parts.
const WIDTH_MAX: usize = 60;

impl Failures {
    /// The report on all of them in PyTorch's layout, with the last lines that the first one wrote to
    /// standard error. `name` is what was run, `host` this host, and `local_time` writes a moment in
    /// seconds since the epoch ([`local_time_text`] does). Ends without a newline.
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
        let told = same_traceback(failures, index);
        let text = block(index, failure, &told, host, local_time);
        width = width.max(
            text.lines()
                .map(|line| line.chars().count())
                .max()
                .unwrap_or(0),
        );
        if index == first {
            root = text;
        } else {
            others.push(text);
        }
    }
    if others.is_empty() {
        others.push("  <NO_OTHER_FAILURES>".to_owned());
    }
    root.push_str(&last_lines(failures.first()));
    let width = width.min(WIDTH_MAX);
    let (rule, thin) = ("=".repeat(width), "-".repeat(width));
    let others = others.join("\n");
    format!(
        "{rule}\n{title}\n{thin}\nFailures:\n{others}\n{thin}\n\
         Root Cause (first observed failure):\n{root}\n{rule}"
    )
}

/// What one traceback has to do with the others.
enum Traceback {
    /// The first one of its text, with the ranks of the workers that left the same.
    Shown { same: Vec<usize> },
    /// Shown already, for the worker with this rank.
    SameAs { rank: usize },
}

/// Workers often fail alike. Each text of an error file is shown once: for the root cause if that has
/// it, else for the first of them.
fn same_traceback(failures: &Failures, index: usize) -> Traceback {
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

/// One failure. The spaces at the ends of lines are PyTorch's.
fn block(
    index: usize,
    failure: &ProcessFailure,
    told: &Traceback,
    host: &str,
    local_time: &dyn Fn(i64) -> String,
) -> String {
    let signal = match failure.exit {
        ExitKind::Signal { number, .. } => signal_name(number),
        _ => None,
    };
    let signal = signal.map_or_else(String::new, |name| format!(" ({name})"));
    let error_file = failure.error_file.as_ref();
    let error_file = error_file.map_or("<N/A>".into(), |path| path.to_string_lossy());
    let ProcessFailure {
        rank,
        local_rank,
        pid,
        message,
        ..
    } = failure;
    let message = match told {
        Traceback::Shown { same } if same.is_empty() => message.clone(),
        Traceback::Shown { .. } => message.trim_end().to_owned(),
        Traceback::SameAs { rank } => format!("the same as that of rank {rank}"),
    };
    let time = local_time(failure.timestamp);
    let code = failure.exit.code();
    let mut text = format!(
        "[{index}]:\n  time      : {time}\n  host      : {host}\n  \
         rank      : {rank} (local_rank: {local_rank})\n  \
         exitcode  : {code} (pid: {pid}) {signal}\n  \
         error_file: {error_file}\n  traceback : {message}"
    );
    if let Traceback::Shown { same } = told
        && !same.is_empty()
    {
        let ranks: Vec<String> = same.iter().map(usize::to_string).collect();
        text.push_str("\n  same in   : rank ");
        text.push_str(&roll::bounded(&ranks));
    }
    if let Some(note) = &failure.note {
        text.push_str("\n  note      : ");
        text.push_str(note);
    }
    text
}

/// The last lines of standard error as one more field; nothing when there are none. A traceback that
/// the error file has as well is left out.
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
        field.push_str(&line);
    }
    field
}

/// How Python begins a traceback.
const TRACEBACK_START: &str = "Traceback (most recent call last):";
