//! Recognizes errors of a Python program that would recur at each start, in the worker's error file and standard
//! error.
//!
//! A wrong "yes" ends a job that a restart would have saved, so in doubt the answer is no: only the interpreter's own
//! report of the exception that ended the process counts, as the last thing on standard error.

use c10d_socket::printable;

use crate::worker::ExitKind;

/// Exceptions of a program that cannot be loaded. Not `NameError` and the like, which the data can cause.
const KINDS: [&str; 5] = [
    "ModuleNotFoundError",
    "ImportError",
    "SyntaxError",
    "IndentationError",
    "TabError",
];

/// The exceptions for which the interpreter prints no traceback of calls, if they are in the script itself.
const SYNTAX_KINDS: [&str; 3] = ["SyntaxError", "IndentationError", "TabError"];

/// The ends of the first place in a traceback: the script, or a module that `python -m` runs.
const MAIN: [&str; 2] = [", in <module>", ", in _run_module_as_main"];

const HEADER: &str = "Traceback (most recent call last):";

/// Python's exit code after an exception that nothing caught.
const UNCAUGHT: i32 = 1;

/// Python's exit code if it cannot open the script.
const NO_SCRIPT: i32 = 2;

/// The longest text that is returned, in characters. A message can hold a whole command line.
const TEXT_CHARS_MAX: usize = 400;

/// Returns the error that made a worker exit, as one line, if it is to be expected at each start. `error_message` is
/// the message in the worker's error file, and `stderr` the kept end of its standard error.
pub(crate) fn fatal_error(
    exit: ExitKind,
    error_message: Option<&str>,
    stderr: &[u8],
) -> Option<String> {
    let ExitKind::Code(code) = exit else {
        return None;
    };
    if let Some(message) = error_message {
        // The worker recorded the exception itself. Standard error may contain a different process's exception.
        let line = message.lines().next().unwrap_or_default();
        return (code == UNCAUGHT && kind_of(line).is_some()).then(|| shortened(line));
    }
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text
        .lines()
        .map(|line| without_rank(line).trim_end())
        .collect();
    let end = lines.iter().rposition(|line| !line.is_empty())?;
    let (last, before) = (lines[end], &lines[..end]);
    let is_fatal = match code {
        NO_SCRIPT => is_missing_script(last),
        UNCAUGHT => {
            is_missing_module(last)
                || kind_of(last).is_some_and(|kind| ends_a_traceback(before, kind))
        }
        _ => false,
    };
    is_fatal.then(|| shortened(last))
}

/// Removes the prefix that PyTorch adds to each line of a traceback in a process group, for example `[rank3]: `.
pub(crate) fn without_rank(line: &str) -> &str {
    let rest = line
        .strip_prefix("[rank")
        .and_then(|rest| rest.split_once("]: "));
    match rest {
        Some((rank, rest)) if is_number(rank) => rest,
        _ => line,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The kind of exception that a line such as `ImportError: no x` names.
fn kind_of(line: &str) -> Option<&'static str> {
    let is_named = |kind: &&&str| {
        line.strip_prefix(**kind)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
    };
    KINDS.iter().find(is_named).copied()
}

/// Whether the lines before the exception's line are a traceback of the interpreter: places in files, and above them
/// the header.
///
/// An exception that makes the process exit has the main program as its first place. An exception that a function
/// caught and logged, or that stopped a thread, starts elsewhere.
fn ends_a_traceback(before: &[&str], kind: &str) -> bool {
    let frames = before
        .iter()
        .rev()
        .take_while(|line| line.starts_with(' '))
        .count();
    let (above, frames) = before.split_at(before.len() - frames);
    let Some(first) = frames.first().filter(|line| is_place(line)) else {
        return false;
    };
    match above.last() {
        Some(line) if *line == HEADER => MAIN.iter().any(|place| first.ends_with(place)),
        _ => SYNTAX_KINDS.contains(&kind) && is_line_of_file(first),
    }
}

/// `  File "/home/user/train.py", line 3, in <module>`, or without the last part.
fn is_place(line: &str) -> bool {
    line.starts_with("  File \"") && line.contains("\", line ")
}

/// The form without a function, of a file that cannot be parsed.
fn is_line_of_file(place: &str) -> bool {
    place
        .rsplit_once("\", line ")
        .is_some_and(|(_, line)| is_number(line))
}

/// `python3: can't open file '/home/user/train.py': [Errno 2] No such file or directory`.
fn is_missing_script(line: &str) -> bool {
    let file = line.split_once(": can't open file '");
    file.is_some_and(|(_, rest)| rest.ends_with("': [Errno 2] No such file or directory"))
}

/// `/usr/bin/python3: No module named train`, for `python3 -m train`.
fn is_missing_module(line: &str) -> bool {
    line.split_once(": No module named ")
        .is_some_and(|(program, module)| {
            let name = program.rsplit('/').next().unwrap_or_default();
            name.starts_with("python") && !program.contains(' ') && !module.contains(' ')
        })
}

fn shortened(line: &str) -> String {
    printable(line, TEXT_CHARS_MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: &str = "Traceback (most recent call last):\n  File \"/t/train.py\", line 3, in <module>\n    \
                          import flash_attn\n";

    const REST: &str =
        "    import_it()\n  File \"/t/x.py\", line 4, in import_it\n    import x\nImportError: x\n";

    fn found(code: i32, stderr: &str) -> Option<String> {
        fatal_error(ExitKind::Code(code), None, stderr.as_bytes())
    }

    #[test]
    fn the_interpreters_last_exception_is_recognized() {
        for kind in ["ModuleNotFoundError", "ImportError"] {
            let stderr = format!("started\n{FRAMES}{kind}: No module named 'flash_attn'\n");
            let expected = format!("{kind}: No module named 'flash_attn'");
            assert_eq!(found(1, &stderr), Some(expected));
        }
        assert_eq!(
            found(1, &format!("{FRAMES}ImportError\n")).as_deref(),
            Some("ImportError")
        );
        // After init_process_group.
        let prefixed: String = format!("{FRAMES}ImportError: x")
            .lines()
            .map(|line| format!("[rank12]: {line}\n"))
            .collect();
        assert_eq!(found(1, &prefixed).as_deref(), Some("ImportError: x"));
    }

    #[test]
    fn a_script_that_cannot_be_parsed_has_no_header() {
        let stderr = "  File \"/t/train.py\", line 1\n    def f(\n         ^\nSyntaxError: '(' was never closed\n";
        assert_eq!(
            found(1, stderr).as_deref(),
            Some("SyntaxError: '(' was never closed")
        );
        let stderr = stderr.replace("SyntaxError", "TabError");
        assert!(found(1, &format!("hello\n{stderr}")).is_some());
        // Without a header an ImportError is not the interpreter's.
        assert_eq!(found(1, &stderr.replace("TabError", "ImportError")), None);
    }

    #[test]
    fn a_missing_script_or_module_is_recognized() {
        let stderr = "python3: can't open file '/t/x.py': [Errno 2] No such file or directory\n";
        assert_eq!(found(2, stderr).as_deref(), Some(stderr.trim_end()));
        assert_eq!(found(1, stderr), None);
        // A file system that does not answer may answer later.
        assert_eq!(
            found(
                2,
                &stderr.replace("2] No such file or directory", "5] Input/output error")
            ),
            None
        );
        assert!(found(1, "/usr/bin/python3.11: No module named train\n").is_some());
        assert_eq!(found(1, "loader: No module named train\n"), None);
    }

    #[test]
    fn only_the_exception_that_ended_the_process_counts() {
        let import = format!("{FRAMES}ImportError: x\n");
        for stderr in [
            // A later line may say why the process ended.
            format!("{import}falling back to eager mode\n"),
            // This exception was caught, and another exception was raised.
            format!(
                "{import}\nDuring handling of the above exception, another exception occurred:\n\n{}",
                import.replace("ImportError", "RuntimeError")
            ),
            // Texts that only mention it.
            "ERROR ImportError: x\n".to_owned(),
            "ImportError: x\n".to_owned(),
            "a log line\nImportError: x\n".to_owned(),
            format!("  {FRAMES}  ImportError: x\n"),
            format!("{FRAMES}MyImportError: x\n"),
            format!("{FRAMES}ImportErrorOfMine: x\n"),
            format!("{FRAMES}lib.ImportError: x\n"),
            "Traceback (most recent call last):\nImportError: x\n".to_owned(),
            "Traceback (most recent call last):\n  not a place\nImportError: x\n".to_owned(),
            String::new(),
            "\n\n".to_owned(),
        ] {
            assert_eq!(found(1, &stderr), None, "{stderr}");
        }
        for exit in [ExitKind::Code(3), ExitKind::signal(9), ExitKind::Unknown] {
            assert_eq!(fatal_error(exit, None, import.as_bytes()), None);
        }
        // This is the exception that caused the next exception.
        let chained = format!(
            "{}\nThe above exception was the direct cause of the following exception:\n\n{import}",
            import.replace("ImportError", "RuntimeError")
        );
        assert_eq!(found(1, &chained).as_deref(), Some("ImportError: x"));
    }

    #[test]
    fn the_first_place_is_the_main_program() {
        let places =
            |first: &str| format!("Traceback (most recent call last):\n  File {first}\n{REST}");
        assert!(
            found(
                1,
                &places("\"<frozen runpy>\", line 198, in _run_module_as_main")
            )
            .is_some()
        );
        for first in [
            // The exception was logged by a function that continues without the module.
            "\"/t/train.py\", line 7, in load_optional",
            "\"/usr/lib/python3.11/threading.py\", line 1045, in _bootstrap_inner",
        ] {
            assert_eq!(found(1, &places(first)), None, "{first}");
        }
        // The kept bytes begin after the header.
        assert_eq!(
            found(
                1,
                &format!("    g()\n  File \"/t/x.py\", line 3, in <module>\n{REST}")
            ),
            None
        );
    }

    #[test]
    fn an_error_file_says_more_than_standard_error() {
        let exit = ExitKind::Code(1);
        let import = format!("{FRAMES}ImportError: x\n");
        let message = "ModuleNotFoundError: No module named 'y'\nand more";
        assert_eq!(
            fatal_error(exit, Some(message), b"").as_deref(),
            Some("ModuleNotFoundError: No module named 'y'")
        );
        assert_eq!(
            fatal_error(
                exit,
                Some("RuntimeError: ImportError: x"),
                import.as_bytes()
            ),
            None
        );
        assert_eq!(fatal_error(ExitKind::Code(7), Some(message), b""), None);
    }

    #[test]
    fn any_bytes_have_an_answer() {
        for bytes in [
            &b"\xff\xfe\nImportError: \xff"[..],
            b"[rank]: \n",
            b"[rank1]: ",
            b" \n \nTabError",
        ] {
            let _ = fatal_error(ExitKind::Code(1), None, bytes);
        }
        let long = format!("{FRAMES}ImportError: {}", "\u{e9}".repeat(1000));
        assert!(found(1, &long).unwrap().chars().count() <= TEXT_CHARS_MAX);
    }
}
