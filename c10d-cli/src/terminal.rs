//! Standard error, shared by log lines and one live line without overwriting each other.
//!
//! On a terminal the live line is always the last one; text is written above it. Workers write to the same
//! terminal directly, so the line must be hidden before they start.
//!
//! A command that other processes depend on [queues](start_queue) its output: a console that accepts no output, for
//! example after Ctrl-S, must not stop it. Other commands wait for their reader, like `grep`.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use c10d_socket::printable;
use elastic_agent::{Next, QueuedWriter};

const THREAD: &str = "stderr";

/// How long a live line that is removed may stay on a terminal that accepts no output.
const HIDE_MAX: Duration = Duration::from_millis(100);

/// How long a command that has ended waits for a standard error that accepts no output.
pub(crate) const STUCK_MAX: Duration = Duration::from_secs(1);

/// The number of columns for a terminal of unknown width.
const COLUMNS_DEFAULT: usize = 80;

/// Longer lines are hard to read.
const COLUMNS_MAX: usize = 120;

/// The state of the screen. It is locked while standard error is written, so that changes are written in their order.
/// The thread that writes the queue does not need the lock while it writes, because other threads only add to the
/// queue.
static SCREEN: Mutex<Screen> = Mutex::new(Screen::new());

static QUEUE: OnceLock<QueuedWriter<Change>> = OnceLock::new();

/// A change of the screen.
#[derive(Debug)]
enum Change {
    Text(Vec<u8>),
    Show(String),
    Hide,
}

/// Starts a thread that writes to standard error from now on, so that no other thread waits for it. Text that is not
/// accepted is eventually dropped, and counted. Panics are also written there.
///
/// # Errors
/// An error of the operating system if it has no thread left.
pub(crate) fn start_queue() -> io::Result<()> {
    let render = |next| match next {
        Next::Item(change) => screen().apply(change),
        Next::Gap(dropped) => screen().text(&gap(dropped)),
    };
    // A closed standard error takes no log.
    let queue = QueuedWriter::start(THREAD, io::stderr(), Box::new(render), drop)?;
    // A second call changes nothing.
    let _ = QUEUE.set(queue);
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let mut text = format!("thread {name} {panic}\n");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            text.push_str(&format!("{backtrace}\n"));
        }
        let _ = StandardError.write_all(text.as_bytes());
    }));
    Ok(())
}

/// Waits until what was queued is written, unless standard error has accepted nothing for `stuck_max`, or is slow for
/// a minute.
pub(crate) fn finish(stuck_max: Duration) {
    if let Some(queue) = QUEUE.get() {
        queue.finish(stuck_max);
    }
}

fn gap(dropped: u64) -> Vec<u8> {
    let text = format!(
        "c10d: {dropped} messages are missing here: standard error accepted no more output\n"
    );
    text.into_bytes()
}

/// Writes to standard error, above the live line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(queue) = QUEUE.get() {
            queue.push(bytes.len(), Change::Text(bytes.to_vec()));
            return Ok(bytes.len());
        }
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

    /// Waits for nothing.
    fn flush(&mut self) -> io::Result<()> {
        // Standard error has no buffer.
        Ok(())
    }
}

/// Whether a live line can be shown: standard error is a terminal that can erase.
pub(crate) fn is_live() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Replaces the live line.
pub(crate) fn show(line: &str) {
    write(line.len(), Change::Show(line.to_owned()));
}

/// Removes the live line. Blocks until it is removed, for a tenth of a second at most if writing is queued.
pub(crate) fn hide() {
    match QUEUE.get() {
        Some(_) if !is_live() => {}
        queue => {
            write(ERASE.len(), Change::Hide);
            if let Some(queue) = queue {
                queue.finish(HIDE_MAX);
            }
        }
    }
}

/// Queues a change of `bytes` bytes, or writes it. Ignores errors of the terminal, which the next writer gets.
fn write(bytes: usize, change: Change) {
    if let Some(queue) = QUEUE.get() {
        return queue.push(bytes, change);
    }
    let mut screen = screen();
    let _ = io::stderr().write_all(&screen.apply(change));
    drop(screen);
}

/// The number of columns of a terminal that reports its width.
pub(crate) fn columns_of(terminal: impl AsFd) -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// How much of a line is shown. A wrapped line cannot be erased, and some terminals wrap in the last column.
fn width() -> usize {
    let columns = columns_of(io::stderr()).map_or(COLUMNS_DEFAULT, usize::from);
    columns.min(COLUMNS_MAX).saturating_sub(1)
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

    fn apply(&mut self, change: Change) -> Vec<u8> {
        match change {
            Change::Text(bytes) => self.text(&bytes),
            Change::Show(line) => self.show(&line, width()),
            Change::Hide => self.hide(),
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
        // Characters other than ASCII may be two columns wide.
        let safe = printable(line, usize::MAX).to_string();
        let narrow = safe.chars().map(|it| if it.is_ascii() { it } else { '?' });
        self.live = Some(narrow.take(width).collect());
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
        assert_eq!(screen.show("a\x1b[2J\u{65e5}b", 11), b"a\\u{1b}[2J?");
        assert_eq!(screen.show("", 0), b"\r\x1b[K");
    }
}
