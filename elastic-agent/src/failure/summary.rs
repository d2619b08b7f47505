//! The report at the end of a job that failed, in PyTorch's layout: people and scripts know it.

use super::{Failures, ProcessFailure, signal_name};
use crate::worker::ExitKind;

/// The longest rule between the parts.
const WIDTH_MAX: usize = 60;

/// How many of the last lines on standard error are shown.
pub(super) const STDERR_LINES_MAX: usize = 20;

pub(super) fn summary(
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
        let text = block(index, failure, host, local_time);
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
    root.push_str(&last_lines(&failures.first().stderr_tail));
    let width = width.min(WIDTH_MAX);
    let (rule, thin) = ("=".repeat(width), "-".repeat(width));
    let others = others.join("\n");
    format!(
        "{rule}\n{title}\n{thin}\nFailures:\n{others}\n{thin}\n\
         Root Cause (first observed failure):\n{root}\n{rule}"
    )
}

/// One failure. The spaces at the ends of lines are PyTorch's.
fn block(
    index: usize,
    failure: &ProcessFailure,
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
    let time = local_time(failure.timestamp);
    let code = failure.exit.code();
    let mut text = format!(
        "[{index}]:\n  time      : {time}\n  host      : {host}\n  \
         rank      : {rank} (local_rank: {local_rank})\n  \
         exitcode  : {code} (pid: {pid}) {signal}\n  \
         error_file: {error_file}\n  traceback : {message}"
    );
    if let Some(note) = &failure.note {
        text.push_str("\n  note      : ");
        text.push_str(note);
    }
    text
}

/// The last lines of a stream as one more field; nothing when there are none.
fn last_lines(stderr_tail: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr_tail);
    let mut lines: Vec<&str> = text
        .split(['\n', '\r'])
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
        .collect();
    lines.drain(..lines.len().saturating_sub(STDERR_LINES_MAX));
    let mut field = String::new();
    if !lines.is_empty() {
        field.push_str("\n  stderr    : the last lines");
    }
    for line in lines {
        field.push_str("\n    ");
        field.push_str(line);
    }
    field
}
