//! Finds the most informative line of a worker's standard error. Pure.

use crate::restart_policy::without_rank;

/// The first line of Python's tracebacks.
pub(super) const TRACEBACK_START: &str = "Traceback (most recent call last):";

/// The line in which the C++ runtime shows the message of an uncaught exception.
const WHAT: &str = "  what():  ";

/// The last words of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LastWords {
    /// Without the prefix of PyTorch, and without spaces around it; not shortened.
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
    use super::*;

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
