//! Standard output: a command's answer, and what a write that fails means.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes bytes as they are: a value that is piped into a file arrives unchanged.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(write_failed)
}

pub(crate) fn print_line(answer: impl std::fmt::Display) -> Result<(), Failure> {
    print(format!("{answer}\n").as_bytes())
}

/// The failure for an error of a write to standard output.
pub(crate) fn write_failed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Output(error),
    }
}
