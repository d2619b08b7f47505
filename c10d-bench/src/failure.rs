//! The failure of a measurement: its exit code and its message of one line.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

/// An error of any kind, with the attempted action before it. It does not implement `Error`, so that every error
/// [becomes a `Failure`](From) with `?`.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    /// 1 if the measured programs fail a check. The other codes equal the codes of `c10d`: 2 for invalid arguments,
    /// including arguments that clap rejects; 4 if standard output cannot be written, like on a full disk; 141, the
    /// code of a program killed by SIGPIPE, if its reader closed it; otherwise 3.
    exit_code: u8,
}

impl Failure {
    /// A measurement could not be finished.
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Self {
            text: text.to_string(),
            exit_code: 3,
        }
    }

    /// The measurement is complete, and one of its checks has failed.
    pub(crate) fn check(text: impl fmt::Display) -> Self {
        Self {
            exit_code: 1,
            ..Self::new(text)
        }
    }

    /// Invalid arguments.
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self {
            exit_code: 2,
            ..Self::new(text)
        }
    }

    /// Standard output cannot be written, or its reader closed it, as `head` does.
    pub(crate) fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self {
                text: String::new(),
                exit_code: 141,
            },
            _ => Self {
                text: format!("cannot write to standard output: {error}"),
                exit_code: 4,
            },
        }
    }

    /// A figure for wrong answers would be worthless.
    pub(crate) fn wrong_answer(
        address: SocketAddr,
        request: &str,
        detail: impl fmt::Display,
    ) -> Self {
        Self::new(format!(
            "the server at {address} answered {request} incorrectly: {detail}"
        ))
    }

    /// Prints one line on standard error; returns the exit code. Ignores a closed standard error.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.text.is_empty() {
            let one_line = self.text.lines().collect::<Vec<_>>().join(" ");
            let _ = writeln!(io::stderr(), "c10d-bench: {one_line}");
        }
        ExitCode::from(self.exit_code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

/// Adds what was attempted to an error.
pub(crate) trait Context<T> {
    fn context(self, attempt: &str) -> Result<T, Failure>;

    /// Adds a text that is made only after an error.
    fn with_context<D: fmt::Display>(self, attempt: impl FnOnce() -> D) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> Context<T> for Result<T, E> {
    fn context(self, attempt: &str) -> Result<T, Failure> {
        self.with_context(|| attempt)
    }

    fn with_context<D: fmt::Display>(self, attempt: impl FnOnce() -> D) -> Result<T, Failure> {
        self.map_err(|error| {
            let failure: Failure = error.into();
            Failure {
                text: format!("{}: {}", attempt(), failure.text),
                ..failure
            }
        })
    }
}
