//! Writes a command's answer to standard output.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::ops::Range;

use c10d_inspect::report_text::TextStyle;

use crate::failure::Failure;
use crate::printable::{printable_json, printable_lines};
use crate::terminal::columns_of;

/// The width of a terminal whose width is unknown.
const COLUMNS_DEFAULT: usize = 100;

/// Longer lines are hard to read.
const COLUMNS_MAX: usize = 140;

/// Shorter lines break in the middle of most names.
const COLUMNS_MIN: usize = 40;

/// The style that fits standard output: width and colors of a terminal, else unwrapped lines for other programs.
pub(crate) fn text_style() -> TextStyle {
    if !is_for_terminal() {
        return TextStyle::new(usize::MAX, false);
    }
    let columns = columns_of(io::stdout()).map_or(COLUMNS_DEFAULT, usize::from);
    TextStyle::new(columns.clamp(COLUMNS_MIN, COLUMNS_MAX), allows_colors())
}

/// Whether the user's terminal and settings allow colors.
fn allows_colors() -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_none_or(|name| name == "dumb");
    !is_dumb && !is_set("NO_COLOR")
}

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

/// Writes JSON on a line, printable to a terminal.
pub(crate) fn print_json(json: impl std::fmt::Display) -> Result<(), Failure> {
    print_line(printable_json(&json.to_string()))
}

/// Columns that are as wide as needed, two spaces apart. The columns of numbers are aligned to the right.
pub(crate) fn columns(rows: &[Vec<String>], numbers: Range<usize>) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match numbers.contains(&column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Prints the first address, so that a script can wait for it and read the port, and logs the others.
pub(crate) fn announce(what: &str, addresses: &[SocketAddr]) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    let mut addresses = addresses.iter();
    if let Some(address) = addresses.next() {
        writeln!(stdout, "{what} {address}")
            .and_then(|()| stdout.flush())
            .map_err(Failure::Output)?;
    }
    for other in addresses {
        log::info!("also {what} {other}");
    }
    Ok(())
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
