//! Writes a command's answer to standard output.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::ops::Range;

use c10d_inspect::report_text::TextStyle;
use c10d_socket::{is_printable, printable};

use crate::failure::Failure;
use crate::terminal::columns_of;

/// The width of a terminal whose width is unknown.
const COLUMNS_DEFAULT: usize = 100;

/// Longer lines are hard to read.
const COLUMNS_MAX: usize = 140;

/// Shorter lines break in the middle of most names.
const COLUMNS_MIN: usize = 40;

/// The style that fits standard output: width and colors of a terminal, otherwise unwrapped lines for other programs.
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

/// Prints the first address, so that a script can wait for it and read the port, and logs the other addresses.
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

/// Lines of text for a terminal, each [printable].
fn printable_lines(bytes: &[u8]) -> String {
    let lines = bytes.split(|byte| *byte == b'\n');
    let lines: Vec<String> = lines
        .map(|line| printable(line, usize::MAX).to_string())
        .collect();
    lines.join("\n")
}

/// A value in quotes. Shows the first `shown_max` bytes of it, and then the number of further bytes.
pub(crate) fn printable_value(value: &[u8], shown_max: usize) -> String {
    let mut end = value.len().min(shown_max);
    if let Ok(text) = str::from_utf8(value) {
        while !text.is_char_boundary(end) {
            end -= 1;
        }
    }
    let shown = printable(&value[..end], usize::MAX);
    match value.len() - end {
        0 => format!("\"{shown}\""),
        left_out => format!("\"{shown}\" (+{left_out} B)"),
    }
}

/// A text in JSON with each character that is not printable replaced by its escape, for example `\u202e`. Keeps line breaks between the parts of the text.
pub(crate) fn printable_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            '\n' => safe.push(char),
            _ if is_printable(char) => safe.push(char),
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    safe.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_breaks_between_lines_remain() {
        let lines = b"a\x1b[2J\r\n\xff\n\n";
        assert_eq!(printable_lines(lines), "a\\u{1b}[2J\\r\n\\xff\n\n");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = "a\u{9b}31m\u{202e}\u{7f}\u{e0001}\u{301}\n\t\u{1b}\"\\ grün 日本";
        let plain = serde_json::json!({ "k": text });
        let safe = printable_json(&plain.to_string());
        assert!(safe.chars().all(is_printable), "{safe}");
        assert!(safe.contains("grün 日本"));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&safe).unwrap(),
            plain
        );
    }

    #[test]
    fn values_are_quoted_escaped_and_cut() {
        let table: [(&[u8], &str); 6] = [
            (b"", r#""""#),
            (b"four", r#""four""#),
            (b"a \"quote\"", r#""a "qu" (+4 B)"#),
            (b"\x1b[2J", r#""\u{1b}[2J""#),
            ("日本".as_bytes(), r#""日" (+3 B)"#),
            (b"\xff\n\x1b\x00ab", r#""\xff\n\u{1b}\u{0}a" (+1 B)"#),
        ];
        for (value, expected) in table {
            assert_eq!(printable_value(value, 5), expected);
        }
    }
}
