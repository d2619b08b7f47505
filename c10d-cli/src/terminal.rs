//! Standard error, shared by log lines and one live line without overwriting each other.
//!
//! On a terminal the live line is always the last one; text is written above it. Workers write to the same
//! terminal directly, so the line must be hidden before they start.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// For a terminal of unknown width.
const COLUMNS_DEFAULT: usize = 80;

/// Longer lines are hard to read.
const COLUMNS_MAX: usize = 120;

/// Locked while standard error is written, so that changes are written in their order.
static SCREEN: Mutex<Screen> = Mutex::new(Screen::new());

/// Writes to standard error, above the live line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut screen = screen();
        let mut stderr = io::stderr();
        // Without a live line the caller handles partial writes.
        if !screen.has_live_line() {
            let count = stderr.write(bytes)?;
            screen.note_written(&bytes[..count]);
            return Ok(count);
        }
        stderr.write_all(&screen.text(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Whether a live line can be shown: standard error is a terminal that can erase.
pub(crate) fn is_live() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Replaces the live line. Ignores errors of the terminal, which the next writer gets.
pub(crate) fn show(line: &str) {
    let columns = rustix::termios::tcgetwinsize(io::stderr())
        .map(|size| usize::from(size.ws_col))
        .ok()
        .filter(|columns| *columns > 0)
        .unwrap_or(COLUMNS_DEFAULT);
    // A wrapped line cannot be erased, and some terminals wrap in the last column.
    let width = columns.min(COLUMNS_MAX).saturating_sub(1);
    let mut screen = screen();
    let bytes = screen.show(line, width);
    let _ = io::stderr().write_all(&bytes);
    drop(screen);
}

/// Removes the live line.
pub(crate) fn hide() {
    let mut screen = screen();
    let bytes = screen.hide();
    let _ = io::stderr().write_all(&bytes);
    drop(screen);
}

fn screen() -> MutexGuard<'static, Screen> {
    // Each change leaves the screen valid, even if a thread panics.
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the end of the terminal. Returns the bytes to write; writes nothing.
#[derive(Debug)]
struct Screen {
    live: Option<String>,
    is_drawn: bool,
    /// The last text has no newline at its end.
    is_inside_line: bool,
}

const ERASE: &[u8] = b"\r\x1b[K";

impl Screen {
    const fn new() -> Self {
        Self {
            live: None,
            is_drawn: false,
            is_inside_line: false,
        }
    }

    const fn has_live_line(&self) -> bool {
        self.live.is_some()
    }

    /// Notes text that was written directly.
    fn note_written(&mut self, bytes: &[u8]) {
        if let Some(&last) = bytes.last() {
            self.is_inside_line = last != b'\n';
        }
    }

    fn text(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.erase(&mut out);
        out.extend_from_slice(bytes);
        self.note_written(bytes);
        self.draw(&mut out);
        out
    }

    fn show(&mut self, line: &str, width: usize) -> Vec<u8> {
        // Parts of the line come from other nodes and must not contain control sequences. Characters
        // other than ASCII may be two columns wide.
        let plain = line.chars().take(width).map(|char| match char {
            ' '..='~' => char,
            _ => '?',
        });
        self.live = Some(plain.collect());
        let mut out = Vec::new();
        self.erase(&mut out);
        self.draw(&mut out);
        out
    }

    fn hide(&mut self) -> Vec<u8> {
        self.live = None;
        let mut out = Vec::new();
        self.erase(&mut out);
        out
    }

    fn erase(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_drawn) {
            out.extend_from_slice(ERASE);
        }
    }

    fn draw(&mut self, out: &mut Vec<u8>) {
        // Drawn only at the start of a line: erasing it would erase unfinished text as well.
        if let Some(line) = self.live.as_ref().filter(|_| !self.is_inside_line) {
            out.extend_from_slice(line.as_bytes());
            self.is_drawn = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_above_the_live_line() {
        let mut screen = Screen::new();
        let mut out = Vec::new();
        out.extend(screen.text(b"first\n"));
        out.extend(screen.show("1 of 2", 79));
        out.extend(screen.text(b"log\n"));
        out.extend(screen.text(b"half "));
        out.extend(screen.show("2 of 2", 79));
        out.extend(screen.text(b"line\n"));
        out.extend(screen.hide());
        out.extend(screen.hide());
        let expected = "first\n1 of 2\r\x1b[Klog\n1 of 2\r\x1b[Khalf line\n2 of 2\r\x1b[K";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn a_live_line_is_truncated_and_has_no_control_characters() {
        let mut screen = Screen::new();
        assert_eq!(screen.show("a\x1b[2J\u{9b}\u{65e5}b", 6), b"a?[2J?");
        assert_eq!(screen.show("", 0), b"\r\x1b[K");
    }
}
