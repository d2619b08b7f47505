//! The exit of one worker, in the form that the nodes of a round exchange.
//!
//! A record holds what a report on another node needs to name the worker: its rank, host, exit, time and last words. Records
//! arrive through a store that anyone on the network may write to, so every length has a limit, and every text is printable.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use c10d_socket::printable;
use serde_json::{Value, json};

use crate::restart_policy::without_rank;
use crate::wording::epoch_ms;
use crate::worker::{ExitKind, WorkerOutcome};

/// The most records that one node writes or reads. The first exits contain the cause, and a value stays far below 64
/// KiB.
const RECORDS_MAX: usize = 64;

const HOST_CHARS_MAX: usize = 255;
const LINE_CHARS_MAX: usize = 400;

/// The highest number of a signal on Linux.
const SIGNAL_MAX: i32 = 64;

/// The exit of one worker of a job, on any node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExitRecord {
    /// The worker's global rank.
    pub rank: usize,
    /// The name of the worker's host, without control characters.
    pub host: String,
    /// The process id on that host, which may be in use again.
    pub pid: u32,
    /// The way in which the process exited.
    pub exit: ExitKind,
    /// When the launcher of that host noticed, in milliseconds since 1970 by the clock of the host.
    pub ended_unix_ms: u64,
    /// The most informative line of standard error: the exception of a traceback, otherwise the last line.
    /// At most 400 printable characters; `None` if standard error was empty, or a terminal.
    pub last_line: Option<String>,
    /// Whether standard error ends with places in a Python program: of a traceback, or of a dump by `faulthandler`.
    pub has_traceback: bool,
    /// Whether the worker was still running when its launcher stopped it.
    pub was_stopped: bool,
}

impl ExitRecord {
    /// The record of a worker of the node `host`.
    #[must_use]
    pub fn of(outcome: &WorkerOutcome, host: &str) -> Self {
        let words = LastWords::of(&outcome.stderr_tail);
        Self {
            rank: outcome.rank,
            host: printable(host, HOST_CHARS_MAX).to_string(),
            pid: outcome.pid,
            exit: outcome.exit,
            ended_unix_ms: epoch_ms(outcome.ended_at),
            last_line: words.line.map(|line| short(&line)),
            has_traceback: words.has_traceback,
            was_stopped: outcome.was_stopped,
        }
    }

    /// When the worker exited, by the clock of its host.
    #[must_use]
    pub fn ended_at(&self) -> SystemTime {
        let since = Duration::from_millis(self.ended_unix_ms);
        UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
    }

    /// The record as the JSON that other nodes read.
    pub(crate) fn to_json(&self) -> Value {
        let mut json = json!({
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "ended_unix_ms": self.ended_unix_ms,
            "traceback": self.has_traceback,
            "stopped": self.was_stopped,
        });
        match self.exit {
            ExitKind::Code(code) => json["code"] = code.into(),
            ExitKind::Signal { number, .. } => json["signal"] = number.into(),
            ExitKind::Unknown => {}
        }
        if let Some(line) = &self.last_line {
            json["last_line"] = line.as_str().into();
        }
        json
    }

    /// Parses a record of another node. Fields that are not known are ignored; missing texts are empty, and missing flags
    /// are false.
    ///
    /// # Errors
    /// What is wrong with the record, in words.
    pub(crate) fn from_json(json: &Value) -> Result<Self, &'static str> {
        let number = |field| json.get(field).and_then(Value::as_u64);
        let flag = |field| json.get(field).and_then(Value::as_bool).unwrap_or(false);
        let text = |field| json.get(field).and_then(Value::as_str);
        let rank = number("rank").and_then(|rank| usize::try_from(rank).ok());
        let small = |field, max| {
            let found = json.get(field).map(Value::as_i64);
            let valid = |number: i64| {
                i32::try_from(number)
                    .ok()
                    .filter(|it| (0..=max).contains(it))
            };
            found
                .map(|number| number.and_then(valid))
                .unwrap_or(Some(-1))
        };
        let exit = match (small("code", 255), small("signal", SIGNAL_MAX)) {
            (None, _) | (_, None) => {
                return Err("it has an exit code or signal that no process has");
            }
            (Some(-1), Some(-1)) => ExitKind::Unknown,
            (Some(code), Some(-1)) => ExitKind::Code(code),
            (Some(-1), Some(number)) => ExitKind::Signal {
                number,
                has_dumped_core: false,
            },
            _ => return Err("it has an exit code and a signal"),
        };
        Ok(Self {
            rank: rank.ok_or("it has no rank")?,
            host: printable(text("host").unwrap_or("unknown"), HOST_CHARS_MAX).to_string(),
            pid: number("pid")
                .and_then(|pid| u32::try_from(pid).ok())
                .unwrap_or_default(),
            exit,
            ended_unix_ms: number("ended_unix_ms").ok_or("it has no time")?,
            last_line: text("last_line").map(short).filter(|line| !line.is_empty()),
            has_traceback: flag("traceback"),
            was_stopped: flag("stopped"),
        })
    }

    /// Returns the records of one node as JSON: first the workers that were not stopped, 64 at most.
    pub(crate) fn all_to_json(records: &[Self]) -> Value {
        let mut first: Vec<&Self> = records.iter().collect();
        first.sort_by_key(|record| (record.was_stopped, record.ended_unix_ms, record.rank));
        first
            .into_iter()
            .take(RECORDS_MAX)
            .map(Self::to_json)
            .collect()
    }

    /// Parses the records of one node, in a job of `world_size` ranks. A record of a rank that cannot exist is an error,
    /// because the other records of its writer are then worth no more.
    ///
    /// # Errors
    /// What is wrong with the records, in words.
    pub(crate) fn all_from_json(
        json: &Value,
        world_size: usize,
    ) -> Result<Vec<Self>, &'static str> {
        let all = json.as_array().ok_or("it is not a list")?;
        if all.len() > RECORDS_MAX {
            return Err("it has more than 64 records");
        }
        let all: Result<Vec<Self>, _> = all.iter().map(Self::from_json).collect();
        let all = all?;
        match all.iter().all(|record| record.rank < world_size) {
            true => Ok(all),
            false => Err("it has a rank that is not below the world size"),
        }
    }
}

fn short(line: &str) -> String {
    printable(line, LINE_CHARS_MAX).to_string()
}

/// The first line of Python's tracebacks.
pub(super) const TRACEBACK_START: &str = "Traceback (most recent call last):";

/// The line in which the C++ runtime shows the message of an uncaught exception.
const WHAT: &str = "  what():  ";

/// The last words of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LastWords {
    /// The most informative line, without the prefix of PyTorch and without spaces around it; not shortened.
    pub(super) line: Option<String>,
    pub(super) has_traceback: bool,
}

impl LastWords {
    /// Reads the kept end of standard error.
    pub(super) fn of(stderr: &[u8]) -> Self {
        let text = String::from_utf8_lossy(stderr);
        let lines: Vec<&str> = text
            .split(['\n', '\r'])
            .map(|line| without_rank(line).trim_end())
            .filter(|line| !line.is_empty())
            .collect();
        let last_place = lines.iter().rposition(|line| is_place(line));
        // The exception follows the last place and the text of its line. Libraries write more while they are unloaded.
        let exception = last_place.and_then(|place| {
            let mut after = lines[place + 1..].iter();
            after.find(|line| !line.starts_with(' '))
        });
        let what = lines.iter().rev().find_map(|line| line.strip_prefix(WHAT));
        let line = exception.copied().or(what).or(lines.last().copied());
        Self {
            line: line.map(|line| line.trim().to_owned()),
            has_traceback: last_place.is_some() || lines.contains(&TRACEBACK_START),
        }
    }
}

/// `  File "/home/user/train.py", line 3, in <module>`, or without the last part.
fn is_place(line: &str) -> bool {
    line.starts_with("  File \"") && line.contains("\", line ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(rank: usize, exit: ExitKind) -> ExitRecord {
        let stderr = "starting\nbad shard 17\n";
        let outcome = WorkerOutcome::for_test(rank, exit, 1_700_000_000_123, stderr);
        ExitRecord::of(&outcome, "node1")
    }

    const ABORT: ExitKind = ExitKind::signal(6);

    #[test]
    fn a_record_survives_its_json() {
        for exit in [
            ExitKind::Code(0),
            ExitKind::Code(255),
            ABORT,
            ExitKind::Unknown,
        ] {
            let mut sent = record(1, exit);
            let json = sent.to_json();
            assert_eq!(ExitRecord::from_json(&json).as_ref(), Ok(&sent), "{json}");
            sent.last_line = None;
            sent.has_traceback = true;
            sent.was_stopped = true;
            assert_eq!(ExitRecord::from_json(&sent.to_json()), Ok(sent));
        }
        let sent = record(1, ExitKind::Code(3));
        assert_eq!(sent.last_line.as_deref(), Some("bad shard 17"));
        assert_eq!(
            sent.to_json(),
            json!({"rank": 1, "host": "node1", "pid": 17, "code": 3, "ended_unix_ms": 1_700_000_000_123_u64,
                   "last_line": "bad shard 17", "traceback": false, "stopped": false})
        );
    }

    #[test]
    fn a_record_that_cannot_be_true_is_an_error() {
        let valid = r#"{"rank": 1, "ended_unix_ms": 5, "code": 3}"#;
        let parse = |text: &str| ExitRecord::from_json(&serde_json::from_str(text).unwrap());
        assert_eq!(
            parse(valid).map(|record| record.host).as_deref(),
            Ok("unknown")
        );
        for (field, other, expected) in [
            ("\"rank\": 1", "\"rank\": -1", "no rank"),
            ("\"rank\": 1", "\"rank\": 1e300", "no rank"),
            ("5", "\"5\"", "no time"),
            ("3", "256", "no process has"),
            ("3", "-1", "no process has"),
            ("3", "99999999999999999999", "no process has"),
            ("3", "3, \"signal\": 0", "and a signal"),
            ("\"code\": 3", "\"signal\": 65", "no process has"),
            ("\"code\": 3", "\"signal\": []", "no process has"),
        ] {
            let error = parse(&valid.replace(field, other)).unwrap_err();
            assert!(error.contains(expected), "{other}: {error}");
        }
        for text in ["[]", "7", "null", "{}"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn texts_are_shortened_and_printable() {
        let mut json = record(1, ABORT).to_json();
        json["host"] = "h".repeat(9999).into();
        json["last_line"] = format!("\u{1b}[2J{}", "é".repeat(9999)).into();
        let read = ExitRecord::from_json(&json).unwrap();
        assert_eq!(read.host.chars().count(), HOST_CHARS_MAX);
        let line = read.last_line.unwrap();
        assert_eq!(line.chars().count(), LINE_CHARS_MAX);
        assert!(line.starts_with("\\u{1b}[2J"), "{line}");
    }

    #[test]
    fn the_first_exits_of_a_node_fit_into_a_value() {
        let mut many: Vec<_> = (0..100).map(|rank| record(rank, ABORT)).collect();
        for record in &mut many {
            record.ended_unix_ms -= record.rank as u64;
            record.was_stopped = record.rank >= 90;
            record.host = "\u{1f3d6}".repeat(HOST_CHARS_MAX);
            record.last_line = Some("\u{1f3d6}".repeat(LINE_CHARS_MAX));
        }
        let json = ExitRecord::all_to_json(&many);
        let read = ExitRecord::all_from_json(&json, 100).unwrap();
        assert_eq!(read.len(), RECORDS_MAX);
        let ranks: Vec<usize> = read.iter().take(2).map(|record| record.rank).collect();
        assert_eq!(ranks, [89, 88]);
        let error = ExitRecord::all_from_json(&json, 89).unwrap_err();
        assert!(error.contains("world size"), "{error}");
        let long = Value::Array(vec![record(0, ABORT).to_json(); RECORDS_MAX + 1]);
        assert!(ExitRecord::all_from_json(&long, 100).is_err());
        assert!(ExitRecord::all_from_json(&Value::Null, 100).is_err());
    }

    proptest! {
        #[test]
        fn any_json_has_an_answer(text in "(\\PC|[\\[\\]{}\",:0-9a-z_])*") {
            let json: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({ "rank": text }));
            let _ = ExitRecord::from_json(&json);
            let _ = ExitRecord::all_from_json(&json!([json]), 3);
        }
    }

    fn words(stderr: &str) -> (String, bool) {
        let words = LastWords::of(stderr.as_bytes());
        (words.line.unwrap_or_default(), words.has_traceback)
    }

    #[test]
    fn the_exception_of_a_traceback_tells_most() {
        let traceback = "Traceback (most recent call last):\n  File \"/t/train.py\", line 3, in <module>\n    \
                         load()\n    ^^^^^^\nValueError: bad shard 17\n";
        let expected = ("ValueError: bad shard 17".to_owned(), true);
        assert_eq!(words(traceback), expected);
        let later = format!("step 3\n{traceback}[W1128 03:01:51 socket.cpp:469] unloading\n");
        assert_eq!(words(&later), expected);
        let prefixed: String = traceback
            .lines()
            .map(|line| format!("[rank12]: {line}\n"))
            .collect();
        assert_eq!(words(&prefixed), expected);
        let chained = format!(
            "{}\nDuring handling of the above exception, another exception occurred:\n\n{traceback}",
            traceback.replace("bad shard 17", "other")
        );
        assert_eq!(words(&chained), expected);
        // The kept bytes begin or end inside the traceback.
        assert_eq!(words(&traceback[20..]), expected);
        assert!(words(&traceback[..60]).1);
    }

    #[test]
    fn a_dump_of_faulthandler_has_places() {
        let dump = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  \
                    File \"/t/train.py\", line 3 in <module>\n";
        assert_eq!(
            words(dump),
            ("File \"/t/train.py\", line 3 in <module>".to_owned(), true)
        );
        let at_exit = dump.replace(
            "File \"/t/train.py\", line 3 in <module>",
            "<no Python frame>",
        );
        assert_eq!(words(&at_exit), ("<no Python frame>".to_owned(), false));
    }

    #[test]
    fn without_a_traceback_it_is_the_last_line_or_the_message_of_cpp() {
        assert_eq!(
            words("starting\nbad shard 17\n\n"),
            ("bad shard 17".to_owned(), false)
        );
        assert_eq!(words(" 10%\r 20%\r"), ("20%".to_owned(), false));
        let abort = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [pair.cc:561] \
                     Connection closed by peer [127.0.0.1]:4711\n";
        let expected = "[pair.cc:561] Connection closed by peer [127.0.0.1]:4711";
        assert_eq!(words(abort), (expected.to_owned(), false));
        assert_eq!(LastWords::of(b"\n \r\n"), LastWords::default());
        assert_eq!(words("\u{fffd}"), ("\u{fffd}".to_owned(), false));
    }
}
