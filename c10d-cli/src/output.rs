//! Writes a command's answer to standard output.

use std::io::{self, IsTerminal, Write};

use crate::failure::Failure;
use crate::printable::printable_lines;

/// Whether the answer goes to a terminal, which what others wrote could control.
pub(crate) fn is_for_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes bytes that others wrote: unchanged, so that they can be redirected into a file, or printable to a terminal.
pub(crate) fn print_of_others(bytes: &[u8]) -> Result<(), Failure> {
    if is_for_terminal() {
        print(printable_lines(bytes).as_bytes())
    } else {
        print(bytes)
    }
}

/// Writes bytes unchanged.
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
