//! Writes a report to standard output.

use std::io::{self, Write};

use crate::failure::Failure;

pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    written.map_err(|error| Failure::output(&error))
}

pub(crate) fn print_line(answer: impl std::fmt::Display) -> Result<(), Failure> {
    print(&format!("{answer}\n"))
}
