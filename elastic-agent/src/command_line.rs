//! The command line of a worker: a program and its arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Runs the path in its first argument, with the other arguments.
const RUN_PATH: &str =
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

/// A script, module or program that a worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entrypoint {
    /// A Python script, by its path.
    Script(OsString),
    /// A Python module, by its name (`--module`).
    Module(OsString),
    /// Anything that Python's `runpy.run_path` runs, by its path (`--run-path`): a script with any name, a directory or a
    /// ZIP file with a `__main__.py`.
    RunPath(OsString),
    /// A program, by its path or its name (`--no-python`).
    Program(OsString),
}

impl Entrypoint {
    /// The name as the user gave it: the title of the report on failures.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        match self {
            Self::Script(name) | Self::Module(name) | Self::RunPath(name) | Self::Program(name) => {
                name
            }
        }
    }
}

/// A program with its arguments, which are passed byte for byte, without a shell.
///
/// ```
/// use elastic_agent::{CommandLine, Entrypoint};
///
/// let script = Entrypoint::Script("train.py".into());
/// let command = CommandLine::of(&script, "python3", ["--shard=${local_rank}"]);
/// let command = command.for_local_rank(2);
/// assert_eq!(command.to_string(), "python3 -u train.py --shard=2");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    program: OsString,
    arguments: Vec<OsString>,
}

impl CommandLine {
    /// A program, by its path or by a name that is looked up in the worker's `PATH`.
    #[must_use]
    pub fn new<A: Into<OsString>>(
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }

    /// The command that runs `entrypoint` with `arguments`. Scripts and modules are run by `python` with
    /// unbuffered output (`-u`), so that the last lines of a worker that crashes are not lost.
    #[must_use]
    pub fn of<A: Into<OsString>>(
        entrypoint: &Entrypoint,
        python: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let (program, mut all) = match entrypoint {
            Entrypoint::Script(path) => (python.into(), vec!["-u".into(), path.clone()]),
            Entrypoint::Module(name) => {
                let before = vec!["-u".into(), "-m".into(), name.clone()];
                (python.into(), before)
            }
            Entrypoint::RunPath(path) => {
                let before = vec!["-u".into(), "-c".into(), RUN_PATH.into(), path.clone()];
                (python.into(), before)
            }
            Entrypoint::Program(program) => (program.clone(), Vec::new()),
        };
        all.extend(arguments.into_iter().map(Into::into));
        Self {
            program,
            arguments: all,
        }
    }

    /// The command of one worker: replaces `$local_rank` and `${local_rank}` in arguments, and `$$` by
    /// `$`. Any other `$` stays, and so does the program.
    #[must_use]
    pub fn for_local_rank(&self, local_rank: usize) -> Self {
        let value = |name: &str| (name == "local_rank").then(|| local_rank.to_string());
        let arguments = self
            .arguments
            .iter()
            .map(|argument| OsString::from_vec(substitute(argument.as_bytes(), value)))
            .collect();
        Self {
            program: self.program.clone(),
            arguments,
        }
    }

    /// The command of a Python worker, as [`of`](Self::of) makes it, under the debugger that these words start: pydevd, which
    /// gets a script as `--file SCRIPT` and a module as `--module --file MODULE`.
    pub(crate) fn under_debugger(&self, words: &[OsString]) -> Self {
        let rest = self.arguments.get(1..).unwrap_or_default();
        let (options, rest): (&[&str], _) = match rest {
            [option, rest @ ..] if option == "-m" => (&["--module", "--file"], rest),
            // The code that runs a path.
            [option, _, rest @ ..] if option == "-c" => (&["--file"], rest),
            rest => (&["--file"], rest),
        };
        let mut arguments = vec!["-u".into()];
        arguments.extend_from_slice(words);
        arguments.extend(options.iter().map(OsString::from));
        arguments.extend_from_slice(rest);
        Self {
            program: self.program.clone(),
            arguments,
        }
    }

    /// The program, by its path or its name.
    #[must_use]
    pub fn program(&self) -> &OsStr {
        &self.program
    }

    /// The arguments, without the program's own name.
    #[must_use]
    pub fn arguments(&self) -> &[OsString] {
        &self.arguments
    }
}

/// Program and arguments separated by spaces, for messages: nothing is quoted.
impl std::fmt::Display for CommandLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.program.display())?;
        for argument in &self.arguments {
            write!(f, " {}", argument.display())?;
        }
        Ok(())
    }
}

/// Replaces `$name` and `${name}` by what `value` returns for the name, and `$$` by `$`. Everything else
/// stays: a name without a value, an unclosed brace, a `$` before any other character.
///
/// A name is an ASCII letter or `_`, followed by as many letters, digits and `_` as possible: `$ab` is
/// never `$a` followed by `b`. Names are case-sensitive.
/// These are the rules of Python's `string.Template.safe_substitute`, for bytes: arguments need not be UTF-8.
pub(crate) fn substitute(template: &[u8], value: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut text = Vec::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.iter().position(|&byte| byte == b'$') {
        text.extend_from_slice(&rest[..at]);
        let macro_ = &rest[at..];
        let (taken, replacement) = match macro_.get(1) {
            Some(b'$') => (2, Some("$".to_owned())),
            Some(b'{') => {
                let name = name_at(&macro_[2..]);
                match macro_.get(2 + name.len()) {
                    Some(b'}') if !name.is_empty() => (name.len() + 3, value(name)),
                    _ => (1, None),
                }
            }
            _ => {
                let name = name_at(&macro_[1..]);
                let replacement = (!name.is_empty()).then(|| value(name)).flatten();
                (1 + name.len(), replacement)
            }
        };
        match replacement {
            Some(replacement) => text.extend_from_slice(replacement.as_bytes()),
            None => text.extend_from_slice(&macro_[..taken]),
        }
        rest = &macro_[taken..];
    }
    text.extend_from_slice(rest);
    text
}

/// The longest name at the start of `bytes`; empty if there is none.
fn name_at(bytes: &[u8]) -> &str {
    let starts = bytes
        .first()
        .is_some_and(|&first| first == b'_' || first.is_ascii_alphabetic());
    let length = if starts {
        bytes
            .iter()
            .take_while(|&&byte| byte == b'_' || byte.is_ascii_alphanumeric())
            .count()
    } else {
        0
    };
    // ASCII only, so never an error.
    str::from_utf8(&bytes[..length]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_modules_run_in_python_and_programs_directly() {
        let run_path = format!("py -u -c {RUN_PATH} a -x 1");
        let table = [
            (Entrypoint::RunPath("a".into()), run_path.as_str()),
            (Entrypoint::Script("a.py".into()), "py -u a.py -x 1"),
            (Entrypoint::Module("a.b".into()), "py -u -m a.b -x 1"),
            (Entrypoint::Program("./a".into()), "./a -x 1"),
        ];
        for (entrypoint, expected) in table {
            let command = CommandLine::of(&entrypoint, "py", ["-x", "1"]);
            assert_eq!(command.to_string(), expected);
        }
    }

    #[test]
    fn a_debugger_comes_before_what_python_runs() {
        let words = ["pydevd.py".into(), "--port".into(), "1".into()];
        let file = "py -u pydevd.py --port 1 --file a.py -x";
        let table = [
            (Entrypoint::Script("a.py".into()), file),
            (Entrypoint::RunPath("a.py".into()), file),
            (
                Entrypoint::Module("a.b".into()),
                "py -u pydevd.py --port 1 --module --file a.b -x",
            ),
        ];
        for (entrypoint, expected) in table {
            let command = CommandLine::of(&entrypoint, "py", ["-x"]);
            assert_eq!(command.under_debugger(&words).to_string(), expected);
        }
    }

    #[test]
    fn the_local_rank_replaces_its_name_in_arguments_but_not_in_the_program() {
        let command = CommandLine::new("$local_rank", ["$local_rank", "${x}", "$$"]);
        let expected = CommandLine::new("$local_rank", ["7", "${x}", "$"]);
        assert_eq!(command.for_local_rank(7), expected);
    }

    /// Recorded from `string.Template(text).safe_substitute(local_rank=3)`.
    #[test]
    fn substitution_equals_pythons() {
        let table = [
            ("$local_rank", "3"),
            ("${local_rank}", "3"),
            ("$$local_rank", "$local_rank"),
            ("$$$local_rank", "$3"),
            ("${local_rank", "${local_rank"),
            ("$local_rankx", "$local_rankx"),
            ("${x}", "${x}"),
            ("$", "$"),
            ("a$", "a$"),
            ("$1", "$1"),
            ("${}", "${}"),
            ("$LOCAL_RANK", "$LOCAL_RANK"),
            ("${ local_rank}", "${ local_rank}"),
            ("$local_rank.py", "3.py"),
            ("$$", "$"),
            ("${local_rank}}", "3}"),
            ("$é", "$é"),
            ("$local_ranké", "3é"),
            ("$${local_rank}", "${local_rank}"),
            ("${local_ranK}", "${local_ranK}"),
            ("$local_rank$local_rank", "33"),
            ("$_", "$_"),
            ("", ""),
        ];
        for (template, expected) in table {
            let text = substitute(template.as_bytes(), |name| {
                (name == "local_rank").then(|| "3".to_owned())
            });
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{template:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_unchanged() {
        let text = substitute(b"\xff$a\xfe${a}\xfd", |_| Some("1".to_owned()));
        assert_eq!(text, b"\xff1\xfe1\xfd");
    }
}
