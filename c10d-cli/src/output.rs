//! Writes a command's answer to standard output.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes bytes unchanged, so that a value can be redirected into a file.
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
